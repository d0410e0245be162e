//! Gauges for Prometheus, as plain data. All gauges are computed from scratch each time, so the series of a deleted
//! object disappear. [`crate::agent::gauges`] computes the gauges of one node. The controller computes the gauges of
//! pools and the fleet.

/// Declares a struct `Families` with one gauge per line: the field, the name of the gauge, and its help text.
macro_rules! families {
    ($($field:ident: $name:literal, $help:literal;)*) => {
        /// All gauges of this list. A gauge without series is not served.
        #[derive(Debug)]
        struct Families {
            $($field: $crate::gauges::Gauge,)*
        }

        impl Families {
            fn new() -> Self {
                Self {
                    $($field: $crate::gauges::Gauge::new($name, $help),)*
                }
            }

            fn all(self) -> Vec<$crate::gauges::Gauge> {
                vec![$(self.$field,)*]
            }
        }
    };
}
pub(crate) use families;

/// A gauge: a name, and one series for each set of labels. A gauge without series is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gauge {
    /// Name of the metric, including the unit.
    pub name: &'static str,
    /// Help text of the metric.
    pub help: &'static str,
    /// The series, one for each set of labels.
    pub series: Vec<Series>,
}

/// A value of a gauge, with its labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// Names and values of the labels.
    pub labels: Vec<(&'static str, String)>,
    /// Value, in the unit that the metric's name states.
    pub value: i64,
}

impl Gauge {
    /// Returns a gauge without series.
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            series: vec![],
        }
    }

    /// Adds a series. A value above the range of `i64` becomes `i64::MAX`.
    pub fn add<const N: usize>(&mut self, labels: [(&'static str, &str); N], value: impl TryInto<i64>) {
        let labels = labels.map(|(name, value)| (name, value.to_owned())).into();
        let value = value.try_into().unwrap_or(i64::MAX);
        self.series.push(Series { labels, value });
    }

    /// Adds a series if there is a value.
    pub fn add_some<const N: usize>(&mut self, labels: [(&'static str, &str); N], value: Option<impl TryInto<i64>>) {
        if let Some(value) = value {
            self.add(labels, value);
        }
    }
}
