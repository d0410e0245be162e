//! Times between the frames of a page.

/// Records the time of each frame, and the work of each long one.
pub(super) const BEGIN: &str = r"
const record = { gaps: [], last: null };
const next = (now) => {
    if (record.last !== null) record.gaps.push(now - record.last);
    record.last = now;
    record.request = requestAnimationFrame(next);
};
record.request = requestAnimationFrame(next);
window.berthFrames = record;
return null;
";

/// Ends the recording, and returns the times in milliseconds.
pub(super) const END: &str = r"
const record = window.berthFrames;
cancelAnimationFrame(record.request);
return record.gaps;
";

/// Times between frames, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Frames {
    /// Number of frames.
    pub count: usize,
    /// Median.
    pub half: f64,
    /// Time that one frame in a hundred exceeds.
    pub p99: f64,
    /// Longest time.
    pub max: f64,
}

impl Frames {
    pub(super) fn of(mut gaps: Vec<f64>) -> Self {
        gaps.sort_by(f64::total_cmp);
        let at = |percent: usize| {
            let index = gaps.len() * percent / 100;
            gaps.get(index.min(gaps.len().saturating_sub(1)))
                .copied()
                .unwrap_or_default()
        };
        Self {
            count: gaps.len(),
            half: at(50),
            p99: at(99),
            max: at(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_frame_in_a_hundred_is_slower_than_p99() {
        let gaps = (1..=200).map(f64::from).rev().collect();
        let frames = Frames::of(gaps);
        assert_eq!(
            (frames.count, frames.half, frames.p99, frames.max),
            (200, 101.0, 199.0, 200.0)
        );
        assert_eq!(Frames::of(vec![]), Frames::default());
    }
}
