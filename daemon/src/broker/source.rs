//! The sources of the events that the broker's epoll instance reports.

/// The source of an event: the upper half of its token; the lower half is an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Doorbell,
    Channel,
    Child,
    Successor,
    SuccessorEnd,
    Started,
    Read,
    Rehearsed,
    Timer,
    Signal,
    Hangup,
    Listener,
    Connection,
}

const SOURCES: [Source; 13] = [
    Source::Doorbell,
    Source::Channel,
    Source::Child,
    Source::Successor,
    Source::SuccessorEnd,
    Source::Started,
    Source::Read,
    Source::Rehearsed,
    Source::Timer,
    Source::Signal,
    Source::Hangup,
    Source::Listener,
    Source::Connection,
];

impl Source {
    /// The token of events of this source with this index.
    pub(super) fn token(self, index: usize) -> u64 {
        (self as u64) << 32 | index as u64
    }

    /// The source and the index of a token.
    pub(super) fn of_token(token: u64) -> (Option<Self>, usize) {
        (SOURCES.get((token >> 32) as usize).copied(), (token & 0xffff_ffff) as usize)
    }
}
