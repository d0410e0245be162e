//! See `berth_fuzz::audit_log`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(audit_log);
