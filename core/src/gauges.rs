//! Gauges for Prometheus as plain data: they are made anew from what is known, so that the series of a thing that is gone
//! are gone with it. [`crate::agent::gauges`] makes those of one node, the controller those of pools and the fleet.

/// Declares `Families`, which has a gauge without series for each line: field, name, sentence for people.
macro_rules! families {
    ($($field:ident: $name:literal, $help:literal;)*) => {
        /// The families, of which some have no series.
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

/// A family of gauges. One without series is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gauge {
    /// Name, with its unit.
    pub name: &'static str,
    /// Sentence for people.
    pub help: &'static str,
    /// The series.
    pub series: Vec<Series>,
}

/// One series of a family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Series {
    /// Names and values of its labels.
    pub labels: Vec<(&'static str, String)>,
    /// Value, in the unit that the family's name gives.
    pub value: i64,
}

impl Gauge {
    /// A family without series.
    pub const fn new(name: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            series: vec![],
        }
    }

    /// Adds a series. A value beyond `i64` becomes the largest.
    pub fn add<const N: usize>(&mut self, labels: [(&'static str, &str); N], value: impl TryInto<i64>) {
        let labels = labels.map(|(name, value)| (name, value.to_owned())).into();
        let value = value.try_into().unwrap_or(i64::MAX);
        self.series.push(Series { labels, value });
    }

    /// Adds a series if there is a value for it.
    pub fn add_some<const N: usize>(&mut self, labels: [(&'static str, &str); N], value: Option<impl TryInto<i64>>) {
        if let Some(value) = value {
            self.add(labels, value);
        }
    }
}
