//! See `berth_fuzz::memory`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(memory);
