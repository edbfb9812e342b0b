//! The cell.
