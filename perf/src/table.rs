//! Columns of text: the first to the left, numbers to the right.

use std::fmt;

/// A table with a row of headers.
#[derive(Debug)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns.
    pub(crate) fn new(headers: &[&str]) -> Self {
        Self { rows: vec![headers.iter().map(|&header| header.to_owned()).collect()] }
    }

    /// Appends a row.
    ///
    /// # Panics
    /// If it has not one cell a column.
    pub(crate) fn push(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.rows[0].len(), "one cell a column");
        self.rows.push(cells);
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].chars().count());
        cells.max().expect("the headers are a row")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths: Vec<usize> = (0..self.rows[0].len()).map(|column| self.width(column)).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, &width)) in row.iter().zip(&widths).enumerate() {
                if column == 0 {
                    line += &format!("{cell:<width$}");
                } else {
                    line += &format!("  {cell:>width$}");
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["round", "req/s", "µs"]);
        table.push(vec!["1".to_owned(), "123456".to_owned(), "3".to_owned()]);
        table.push(vec!["median".to_owned(), "7".to_owned(), String::new()]);
        let expected = "round    req/s  µs\n1       123456   3\nmedian       7\n";
        assert_eq!(table.to_string(), expected);
    }
}
