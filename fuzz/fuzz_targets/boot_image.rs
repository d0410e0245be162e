//! See `berth_fuzz::boot_image`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(boot_image);
