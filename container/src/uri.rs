//! Uri.
