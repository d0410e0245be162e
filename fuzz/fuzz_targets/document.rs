//! See `berth_fuzz::document`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(document);
