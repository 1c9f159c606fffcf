//! The batches of a queue submission by the semaphores they use: which batches begin together, and which semaphores they wait for.

use super::waits::{Driver, Wait, Waits};
use crate::context::error::Fault;
use crate::kinds::semaphore::{Progress, Signal};
use crate::objects::reading::Reading;
use crate::objects::usage::Uses;
use parking_lot::Mutex;
use protocol::venus::generated as venus;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use std::sync::Arc;

/// A sequence of batches in which only the first waits and only the last signals: it is one submission to the driver.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// The range of the call's batches that are in the group.
    pub batches: Range<usize>,
    /// The command buffers of these batches.
    pub command_buffers: SmallVec<[venus::CommandBuffer; 4]>,
    /// The semaphores of these batches, and the guest's fence behind the batches.
    pub uses: Uses,
    /// True if programs learn of the group's progress, or hold it up, by events and queries.
    pub is_heard: bool,
    /// True if the group takes no time of the GPU, so that it needs no grant.
    pub is_free: bool,
    waits: Vec<Used>,
    signals: Vec<(Arc<Mutex<Signal>>, u64)>,
}

/// The groups of a call, usually one.
pub(crate) type Groups = SmallVec<[Group; 1]>;

/// A semaphore in a batch.
#[derive(Debug)]
struct Used {
    semaphore: venus::Semaphore,
    raw: u64,
    value: u64,
    signal: Arc<Mutex<Signal>>,
}

/// A batch of a queue submission: the semaphores that it waits for and signals, with their values if they have any, and its command buffers.
pub(crate) trait Batch {
    /// Returns the command buffers that the batch runs.
    fn command_buffers(&self) -> impl Iterator<Item = venus::CommandBuffer>;
    /// Returns the semaphores that the batch waits for, and their values.
    fn waits(&self) -> impl Iterator<Item = (venus::Semaphore, u64)>;
    /// Returns the semaphores that the batch signals, and their values.
    fn signals(&self) -> impl Iterator<Item = (venus::Semaphore, u64)>;
}

/// Splits the batches of a call into groups. In one group, a batch that waits would hide how long the batch before it runs, and a batch behind
/// one that signals would hide the end of that batch, which the program learns from the semaphore.
pub(crate) fn groups(objects: &Reading<'_>, batches: &[impl Batch]) -> Result<Groups, Fault> {
    let mut groups = Groups::new();
    for (index, batch) in batches.iter().enumerate() {
        let waits = batch.waits().filter(|(semaphore, _)| semaphore.0 != 0);
        let mut waits = waits.peekable();
        if waits.peek().is_some() || groups.last().is_none_or(Group::signals) {
            groups.push(Group { batches: index..index, ..Group::default() });
        }
        let group = groups.last_mut().expect("pushed above");
        group.batches.end = index + 1;
        group.command_buffers.extend(batch.command_buffers());
        for (semaphore, value) in waits {
            let used = used(objects, semaphore, value, &group.uses)?;
            group.waits.push(used);
        }
        for (semaphore, value) in batch.signals().filter(|(semaphore, _)| semaphore.0 != 0) {
            group.signals.push((used(objects, semaphore, value, &group.uses)?.signal, value));
        }
    }
    Ok(groups)
}

/// Returns the uses of those semaphores of batches that exist. The submission is refused if one of them is destroyed after this call.
pub(crate) fn used_semaphores(objects: &Reading<'_>, batches: &[impl Batch]) -> Uses {
    let uses = Uses::default();
    let used = batches.iter().flat_map(|batch| batch.waits().chain(batch.signals()));
    let used = used.filter_map(|(semaphore, _)| objects.get(semaphore).ok());
    used.for_each(|semaphore| uses.add(&semaphore.usage));
    uses
}

fn used(objects: &Reading<'_>, semaphore: venus::Semaphore, value: u64, uses: &Uses) -> Result<Used, Fault> {
    let object = objects.get(semaphore)?;
    uses.add(&object.usage);
    let signal = object.shared::<venus::Semaphore>()?;
    Ok(Used { semaphore, raw: object.raw, value, signal })
}

impl Group {
    /// Creates the group of a fence and no batch.
    pub(crate) fn of_fence() -> Self {
        Self { is_free: true, ..Self::default() }
    }

    /// Creates the group of the part of a lost device's submission that can run, if there is any: its time counts at once.
    pub(crate) fn of_lost(
        count: usize,
        uses: Uses,
        command_buffers: impl Iterator<Item = venus::CommandBuffer>,
    ) -> Groups {
        match count {
            0 => Groups::new(),
            _ => {
                let command_buffers = command_buffers.collect();
                smallvec![Self { batches: 0..count, command_buffers, uses, ..Self::default() }]
            }
        }
    }

    /// Returns the number of groups that take time of the GPU, which the gate counts.
    pub(crate) fn counted(groups: &[Self]) -> usize {
        groups.iter().filter(|group| !group.is_free).count()
    }

    /// Returns the group's waits as they are now, and takes the signal of each binary semaphore out.
    pub(super) fn waits(&self) -> Waits {
        let wait = |used: &Used| match &mut *used.signal.lock() {
            Signal::Timeline { .. } => {
                let Used { semaphore, raw, value, .. } = *used;
                Some(Wait::Timeline { semaphore, raw, value, signal: Arc::clone(&used.signal) })
            }
            // A binary semaphore that nothing signals is not counted as a wait: it blocks the driver as it would for a program on the host.
            Signal::Binary(by) => by.take().map(Wait::Signalled),
        };
        self.waits.iter().filter_map(wait).collect()
    }

    /// Notes that the group is about to be submitted. Returns the progress that its binary semaphores then hold, if it signals any.
    pub(super) fn signal(&self) -> Option<Progress> {
        let mut progress = None;
        for (signal, _) in &self.signals {
            if let Signal::Binary(by) = &mut *signal.lock() {
                *by = Some(progress.get_or_insert_with(Progress::default).clone());
            }
        }
        progress
    }

    /// Returns whether the group signals semaphores, by which a guest or another queue may learn of its end.
    pub(crate) fn signals(&self) -> bool {
        !self.signals.is_empty()
    }

    /// Returns whether the group may take for as long as a program likes: until a semaphore is signalled, or an event set.
    pub(crate) fn may_be_held_up(&self) -> bool {
        !self.waits.is_empty() || self.is_heard
    }

    /// Notes that the driver has taken the group, so that other submissions can wait for the semaphores that it signals.
    pub(crate) fn promise(&self) {
        for (signal, value) in &self.signals {
            if let Signal::Timeline { promised } = &mut *signal.lock() {
                *promised = (*promised).max(*value);
            }
        }
    }

    /// Returns whether the group's waits are over, or will be without further commands.
    pub(crate) fn is_ready(&self, driver: &impl Driver) -> bool {
        self.waits.iter().all(|used| match &*used.signal.lock() {
            Signal::Timeline { promised } => {
                *promised >= used.value || driver.has_reached(used.semaphore, used.raw, used.value)
            }
            Signal::Binary(by) => by.as_ref().is_none_or(Progress::is_taken),
        })
    }
}

impl Batch for venus::SubmitInfo<'_> {
    fn command_buffers(&self) -> impl Iterator<Item = venus::CommandBuffer> {
        self.p_command_buffers.unwrap_or(&[]).iter().copied()
    }

    fn waits(&self) -> impl Iterator<Item = (venus::Semaphore, u64)> {
        let values = self.p_next.iter().find_map(|next| match next {
            venus::ChainStruct::TimelineSemaphoreSubmitInfo(values) => values.p_wait_semaphore_values,
            _ => None,
        });
        let values = values.unwrap_or(&[]).iter().copied().chain(std::iter::repeat(0));
        self.p_wait_semaphores.unwrap_or(&[]).iter().copied().zip(values)
    }

    fn signals(&self) -> impl Iterator<Item = (venus::Semaphore, u64)> {
        let values = self.p_next.iter().find_map(|next| match next {
            venus::ChainStruct::TimelineSemaphoreSubmitInfo(values) => values.p_signal_semaphore_values,
            _ => None,
        });
        let values = values.unwrap_or(&[]).iter().copied().chain(std::iter::repeat(0));
        self.p_signal_semaphores.unwrap_or(&[]).iter().copied().zip(values)
    }
}

impl Batch for venus::SubmitInfo2<'_> {
    fn command_buffers(&self) -> impl Iterator<Item = venus::CommandBuffer> {
        self.p_command_buffer_infos.unwrap_or(&[]).iter().map(|info| info.command_buffer)
    }

    fn waits(&self) -> impl Iterator<Item = (venus::Semaphore, u64)> {
        self.p_wait_semaphore_infos.unwrap_or(&[]).iter().map(|info| (info.semaphore, info.value))
    }

    fn signals(&self) -> impl Iterator<Item = (venus::Semaphore, u64)> {
        self.p_signal_semaphore_infos.unwrap_or(&[]).iter().map(|info| (info.semaphore, info.value))
    }
}

/// A batch of one semaphore.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Single {
    /// The batch waits for the semaphore.
    Wait(venus::Semaphore),
    /// The batch signals the semaphore.
    Signal(venus::Semaphore),
}

impl Batch for Single {
    fn command_buffers(&self) -> impl Iterator<Item = venus::CommandBuffer> {
        std::iter::empty()
    }

    fn waits(&self) -> impl Iterator<Item = (venus::Semaphore, u64)> {
        match self {
            Self::Wait(semaphore) => Some((*semaphore, 0)).into_iter(),
            Self::Signal(_) => None.into_iter(),
        }
    }

    fn signals(&self) -> impl Iterator<Item = (venus::Semaphore, u64)> {
        match self {
            Self::Signal(semaphore) => Some((*semaphore, 0)).into_iter(),
            Self::Wait(_) => None.into_iter(),
        }
    }
}
