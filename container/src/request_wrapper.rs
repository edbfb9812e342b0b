//! Shows a request differently to what comes behind on its way. Stands for
//! `HttpServletRequestWrapper`.

/// Shows values of a request differently (Servlet section 6.2.2). Wrappers of a request are asked
/// in the order in which they came, each with what the one before it shows.
pub trait RequestWrapper: Send + Sync + 'static {
    /// What to show for a field, `value` being what is there.
    fn header(&self, _name: &str, value: Option<&str>) -> Option<String> {
        value.map(str::to_owned)
    }

    /// What to show for a parameter, `value` being what is there.
    fn parameter(&self, _name: &str, value: Option<&str>) -> Option<String> {
        value.map(str::to_owned)
    }
}
