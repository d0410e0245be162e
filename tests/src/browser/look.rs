//! Size and preferences of a page.

/// Colour scheme that the page is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scheme {
    /// Dark text on a light ground.
    #[default]
    Light,
    /// Light text on a dark ground.
    Dark,
}

impl Scheme {
    /// Value of the media feature `prefers-color-scheme`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }
}

/// Size and preferences of a page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    /// Width in CSS pixels.
    pub width: u32,
    /// Height in CSS pixels.
    pub height: u32,
    /// Device pixels of a CSS pixel.
    pub scale: f64,
    /// Colour scheme.
    pub scheme: Scheme,
}

impl Look {
    /// A page of this size, light, with one device pixel for each CSS pixel.
    pub fn of(width: u32, height: u32) -> Self {
        Self {
            width,
            height,
            scale: 1.0,
            scheme: Scheme::Light,
        }
    }
}

impl Default for Look {
    fn default() -> Self {
        Self::of(1280, 800)
    }
}
