//! See `berth_fuzz::kubectl`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(kubectl);
