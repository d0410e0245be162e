//! Boot image skew: checks if the image that a machine was installed from (its boot image) is too far away in version
//! from an OS image. Pure.

use berth_api::boot_image::{BootImageLimit, DEFAULT_MAX_MAJOR_SKEW};

pub mod aleph;
pub mod ignition;
pub mod version;

use version::{Comparison, OsVersion};

/// Result of comparing a boot image with the limits of an OS image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skew {
    /// The OS image and its pool set no limit.
    NoLimit,
    /// The boot image is within all limits.
    Within,
    /// The boot image is older than the minimum, or too many major versions away from the OS image. The message is the
    /// end of a sentence that begins with the machine's name.
    Exceeded(String),
    /// The boot image cannot be compared with the limits. The message is the end of a sentence that begins with the
    /// machine's name.
    Unknown(String),
}

/// Compares the version of a boot image with the limits of an OS image: a minimum version, and a maximum number of
/// major versions between the boot image and the OS image.
///
/// `boot` and `image` are the versions as texts. `limits` are the limits of the image and of its pool; all of them
/// apply. If there are limits, but none sets a maximum number of major versions, the maximum is
/// [`DEFAULT_MAX_MAJOR_SKEW`].
pub fn skew(boot: Option<&str>, image: Option<&str>, limits: &[&BootImageLimit]) -> Skew {
    if limits.iter().all(|limit| limit.is_none()) {
        return Skew::NoLimit;
    }
    let Some(boot) = boot else {
        return Skew::Unknown("has no record of the image it was installed from".to_owned());
    };
    let boot: OsVersion = match boot.parse() {
        Ok(boot) => boot,
        Err(error) => return Skew::Unknown(format!("was installed from an invalid version: {error}")),
    };
    let mut doubt = limits
        .iter()
        .find_map(|limit| limit.error.as_ref())
        .map(|error| format!("was installed from {boot}, which cannot be compared: {error}"));
    for minimum in limits.iter().filter_map(|limit| limit.minimum_version.as_deref()) {
        match minimum.parse::<OsVersion>().map(|minimum| boot.compare(&minimum)) {
            Ok(Comparison::Older) => {
                return Skew::Exceeded(format!(
                    "was installed from {boot}, which is older than the minimum {minimum}"
                ));
            }
            Ok(Comparison::Unknown(why)) => {
                doubt = doubt.or(Some(format!(
                    "was installed from {boot}, which cannot be compared: {why}"
                )));
            }
            Ok(Comparison::Equal | Comparison::Newer) => {}
            Err(error) => {
                doubt = doubt.or(Some(format!(
                    "was installed from {boot}, which cannot be compared: the minimum is invalid: {error}"
                )));
            }
        }
    }
    let most = limits.iter().filter_map(|limit| limit.max_major_skew).min();
    let most = most.unwrap_or(DEFAULT_MAX_MAJOR_SKEW);
    match majors_between(&boot, image) {
        Ok(majors) if majors > u64::from(most) => Skew::Exceeded(format!(
            "was installed from {boot}, which is {majors} major versions away from {}; at most {most} allowed",
            image.unwrap_or_default()
        )),
        Ok(_) => doubt.map_or(Skew::Within, Skew::Unknown),
        Err(why) => Skew::Unknown(
            doubt.unwrap_or_else(|| format!("was installed from {boot}, which cannot be compared: {why}")),
        ),
    }
}

/// Returns how many major versions are between a boot image and an OS image, or why that number is unknown.
fn majors_between(boot: &OsVersion, image: Option<&str>) -> Result<u64, String> {
    let Some(image) = image else {
        return Err("the OS image has no version".to_owned());
    };
    let image: OsVersion = match image.parse() {
        Ok(image) => image,
        Err(error) => return Err(format!("the OS image's version is invalid: {error}")),
    };
    if boot.family() != image.family() {
        return Err(format!("{boot} and {image} are versions of different systems"));
    }
    if boot.is_apart(&image) {
        return Err(format!("{boot} and {image} use different version schemes"));
    }
    match (boot.major(), image.major()) {
        (Some(boot), Some(image)) => Ok(boot.abs_diff(image)),
        (None, None) => Ok(0),
        _ => Err(format!("{boot} and {image} use different version schemes")),
    }
}

#[cfg(test)]
mod tests;
