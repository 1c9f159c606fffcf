//! The state in which the frontend has the window.

/// The window, apart from what the device knows of it.
#[derive(Debug, Default)]
pub(super) struct Window {
    /// Offset and bytes of mappings the frontend made after it had stopped the queues: if that was for a reset, it has
    /// dropped all others and kept these.
    pub late: Vec<(u64, u64)>,
    /// Offset and bytes of what the frontend is to unmap as soon as it does not have the device stopped any more.
    pub owed: Vec<(u64, u64)>,
    /// The frontend has changed its table for no request, though it announces mappings there: it is not waited for.
    pub keeps_table: bool,
}
