//! Gauges for Prometheus as plain data. All gauges are rebuilt from the current facts, so the series of a removed
//! object disappear. [`crate::agent::gauges`] builds the gauges of one node; the controller builds the gauges of
//! pools and the fleet.

/// Declares `Families`, with one empty gauge per line: field, name, help text.
macro_rules! families {
    ($($field:ident: $name:literal, $help:literal;)*) => {
        /// All families. Some may have no series.
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

/// A family of gauges. A family without series is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gauge {
    /// Name, including the unit.
    pub name: &'static str,
    /// Help text.
    pub help: &'static str,
    /// The series.
    pub series: Vec<Series>,
}

/// A series of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// Names and values of its labels.
    pub labels: Vec<(&'static str, String)>,
    /// Value, in the unit that the family's name states.
    pub value: i64,
}

impl Gauge {
    /// Returns a family without series.
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

    /// Adds a series, unless the value is `None`.
    pub fn add_some<const N: usize>(&mut self, labels: [(&'static str, &str); N], value: Option<impl TryInto<i64>>) {
        if let Some(value) = value {
            self.add(labels, value);
        }
    }
}
