//! See `berth_fuzz::image_ref`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(image_ref);
