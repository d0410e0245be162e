//! See `berth_fuzz::registries_conf`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(registries_conf);
