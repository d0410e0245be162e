//! See `berth_fuzz::auth_file`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(auth_file);
