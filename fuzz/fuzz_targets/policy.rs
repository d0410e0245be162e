//! See `berth_fuzz::policy`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(policy);
