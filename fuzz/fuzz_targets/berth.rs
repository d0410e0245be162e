//! See `berth_fuzz::berth`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(berth);
