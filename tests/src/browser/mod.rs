//! A real browser: headless Chromium, driven through chromedriver.

mod accessible;
mod driver;
mod frames;
mod install;
mod look;
mod page;
mod png;
mod webdriver;

pub use accessible::Accessible;
pub use frames::Frames;
pub use install::unavailable;
pub use look::{Look, Scheme};
pub use page::{Browser, Key};
