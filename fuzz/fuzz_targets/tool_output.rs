//! See `berth_fuzz::tool_output`.

#![cfg_attr(fuzzing, no_main)]

berth_fuzz::target!(tool_output);
