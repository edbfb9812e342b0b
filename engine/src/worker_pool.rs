//! pending
/// j
pub type Job = Box<dyn FnOnce() + Send>;
/// p
pub trait Pool: Send + Sync {
    /// s
    fn try_submit(&self, job: Job) -> Result<(), Job>;
}
