//! See `berth_fuzz::staged`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(staged);
