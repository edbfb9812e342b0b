//! pending
/// a
pub fn allowed() -> Vec<usize> {vec![0]}
/// a
pub fn default_core_count() -> usize {1}
/// a
pub fn pin_current_thread(_: usize) -> bool {true}
/// a
pub fn name_current_thread(_: &str) {}
