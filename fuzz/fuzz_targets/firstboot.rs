//! See `berth_fuzz::firstboot`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(firstboot);
