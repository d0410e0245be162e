//! How the sources themselves are kept: their prose, and the direction of their imports.

mod one_way;
mod prose;
mod sources;
