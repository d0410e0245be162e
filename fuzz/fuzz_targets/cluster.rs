//! See `berth_fuzz::cluster`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(cluster);
