//! See `berth_fuzz::written`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(written);
