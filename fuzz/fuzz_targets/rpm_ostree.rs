//! See `berth_fuzz::rpm_ostree`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(rpm_ostree);
