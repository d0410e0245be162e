//! See `berth_fuzz::bootc`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(bootc);
