//! Median, minimum and maximum of a few measurements. No mean: one disturbed round would move it.

/// How measurements of one thing spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Spread {
    /// The middle one, or the mean of the two in the middle.
    pub(crate) median: f64,
    /// The smallest.
    pub(crate) min: f64,
    /// The largest.
    pub(crate) max: f64,
}

impl Spread {
    /// The spread of `values`, in any order; `None` if there are none.
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_odd_even_and_no_counts() {
        let check = |values: &[f64], expected: Option<(f64, f64, f64)>| {
            let expected = expected.map(|(median, min, max)| Spread { median, min, max });
            assert_eq!(Spread::of(values.iter().copied()), expected, "{values:?}");
        };
        check(&[], None);
        check(&[2.0], Some((2.0, 2.0, 2.0)));
        check(&[3.0, 1.0, 2.0], Some((2.0, 1.0, 3.0)));
        check(&[10.0, 4.0, 1.0, 2.0], Some((3.0, 1.0, 10.0)));
    }
}
