//! Time stamps of the GPU around the submissions of one queue, and their translation to the system's monotonic clock.
//!
//! Each submission gets a command buffer of ours before and behind its own. The device's clock is mapped to the system's by the shortest time that
//! was seen between a stamp and the moment at which a thread learned of it. While exact times matter, a thread always notices some completion within
//! microseconds.
//!
//! A stamp has a cost: a software driver comes to a halt for it. So while the exact time is not needed, few submissions are stamped, and the others
//! are assumed to last as long.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::driver::generated::sys;
use crate::driver::physical_device::PhysicalDevice;
use ash::vk::{self, Handle as _};
use parking_lot::Mutex;

/// Submissions of a queue that can be stamped at a time; further ones are charged by the times of their dispatch and completion.
const SLOTS: u32 = 64;

/// Time from one stamped submission to the next while few are stamped, in nanoseconds.
const SAMPLE_EVERY: u64 = 20_000_000;

/// Time after which the two clocks are compared anew, in nanoseconds: they drift.
const COMPARED_FOR: u64 = 10_000_000_000;

/// Stamps of one queue.
#[derive(Debug)]
pub(crate) struct Stamps {
    queries: vk::QueryPool,
    pool: vk::CommandPool,
    slots: Vec<Slot>,
    free: Mutex<Vec<u32>>,
    clock: Mutex<Clock>,
    /// True if a processor does the GPU's work: the time at which a thread learns of a completion is then as good as a stamp.
    is_software: bool,
    samples: Mutex<Samples>,
}

#[derive(Debug, Default)]
struct Samples {
    /// The time at which the last sample was taken.
    at: u64,
    /// The time that a submission lasts, on average, in nanoseconds; 0 if none is known.
    length: u64,
}

/// A pair of stamps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    /// The pair's number.
    pub index: u32,
    begin: vk::CommandBuffer,
    end: vk::CommandBuffer,
}

impl Stamps {
    /// Creates the stamps of a queue of a family, if such queues can have stamps.
    ///
    /// # Errors
    ///
    /// The driver is out of memory.
    pub(crate) fn new(
        physical: &PhysicalDevice,
        device: &ash::Device,
        family: u32,
    ) -> Result<Option<Self>, vk::Result> {
        let Some(properties) = physical.families.get(family as usize) else { return Ok(None) };
        let bits = properties.timestamp_valid_bits;
        // A queue that only copies cannot reset queries.
        let resets = vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS;
        if bits == 0 || !properties.queue_flags.intersects(resets) {
            return Ok(None);
        }
        // SAFETY: the handle comes from this live instance.
        let properties = unsafe { physical.instance.ash.get_physical_device_properties(physical.handle) };
        let info = vk::QueryPoolCreateInfo::default().query_type(vk::QueryType::TIMESTAMP);
        // SAFETY: the device is live, here and below; each `info` lives until its call returns.
        let queries = unsafe { device.create_query_pool(&info.query_count(2 * SLOTS), None) }?;
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(physical.order.swap(family));
        // SAFETY: as above.
        let pool = unsafe { device.create_command_pool(&info, None) };
        let clock = Mutex::new(Clock::new(bits, properties.limits.timestamp_period));
        let free = Mutex::new((0..SLOTS).collect());
        let mut stamps = Self {
            queries,
            pool: pool.unwrap_or_default(),
            slots: Vec::new(),
            free,
            clock,
            is_software: properties.device_type == vk::PhysicalDeviceType::CPU,
            samples: Mutex::default(),
        };
        match pool.and_then(|pool| record(device, queries, pool)) {
            Ok(slots) => {
                stamps.slots = slots;
                Ok(Some(stamps))
            }
            Err(error) => {
                stamps.destroy(device);
                Err(error)
            }
        }
    }

    /// Returns whether the driver is a software driver, which comes to a halt for a stamp.
    pub(crate) fn is_software(&self) -> bool {
        self.is_software
    }

    /// Takes an unused pair, if one is left and this submission is to be stamped; `exactly` if the cost of the submission matters.
    pub(crate) fn take(&self, exactly: bool, now: u64) -> Option<Slot> {
        let mut samples = self.samples.lock();
        if (!exactly || self.is_software) && now.saturating_sub(samples.at) < SAMPLE_EVERY {
            return None;
        }
        samples.at = now;
        self.free.lock().pop().and_then(|index| self.slots.get(index as usize).copied())
    }

    /// Takes back a pair that the device has no use for any more. Returns the times of the pair on the monotonic clock, in nanoseconds, as noticed at
    /// `now`; none if the pair was never written.
    pub(crate) fn give_back(&self, device: &ash::Device, index: u32, now: u64) -> Option<(u64, u64)> {
        let mut ticks = [0u64; 2];
        // SAFETY: device and pool are live, and the pair is in the pool.
        let read = unsafe {
            device.get_query_pool_results(self.queries, 2 * index, &mut ticks, vk::QueryResultFlags::TYPE_64)
        };
        self.free.lock().push(index);
        read.ok().map(|()| self.clock.lock().place(ticks, now))
    }

    /// Returns whether the device has begun the submission that a pair in use encloses.
    pub(crate) fn has_begun(&self, device: &ash::Device, index: u32) -> bool {
        let mut ticks = [0u64];
        let flags = vk::QueryResultFlags::TYPE_64;
        // SAFETY: device and pool are live, and the pair is in the pool.
        unsafe { device.get_query_pool_results(self.queries, 2 * index, &mut ticks, flags) }.is_ok()
    }

    /// Notes the measured length of a stamped submission, in nanoseconds.
    pub(crate) fn sample(&self, length: u64) {
        let mut samples = self.samples.lock();
        samples.length = if samples.length == 0 { length } else { (samples.length * 3 + length) / 4 };
    }

    /// Returns the assumed length of a submission without stamps, in nanoseconds; none if no length is known.
    pub(crate) fn usual_length(&self) -> Option<u64> {
        Some(self.samples.lock().length).filter(|length| *length > 0)
    }

    /// Destroys everything; the device is idle.
    pub(crate) fn destroy(&self, device: &ash::Device) {
        // SAFETY: the device is live and idle; a handle that was never made is null, which is ignored.
        unsafe { device.destroy_query_pool(self.queries, None) };
        // SAFETY: as above.
        unsafe { device.destroy_command_pool(self.pool, None) };
    }
}

fn record(
    device: &ash::Device,
    queries: vk::QueryPool,
    pool: vk::CommandPool,
) -> Result<Vec<Slot>, vk::Result> {
    let info = vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(2 * SLOTS);
    // SAFETY: device and pool are live, and no other code knows the pool.
    let buffers = unsafe { device.allocate_command_buffers(&info) }?;
    let (pairs, _) = buffers.as_chunks::<2>();
    for (index, [begin, end]) in (0..).zip(pairs) {
        let first = 2 * index;
        recorded(device, *begin, |commands| {
            // SAFETY: the command buffer is being recorded, and the pair is in the pool.
            unsafe { device.cmd_reset_query_pool(commands, queries, first, 2) };
            let stage = vk::PipelineStageFlags::TOP_OF_PIPE;
            // SAFETY: as above.
            unsafe { device.cmd_write_timestamp(commands, stage, queries, first) };
        })?;
        recorded(device, *end, |commands| {
            let stage = vk::PipelineStageFlags::BOTTOM_OF_PIPE;
            // SAFETY: as above.
            unsafe { device.cmd_write_timestamp(commands, stage, queries, first + 1) };
        })?;
    }
    let slot =
        |(index, [begin, end]): (u32, &[vk::CommandBuffer; 2])| Slot { index, begin: *begin, end: *end };
    Ok((0..).zip(pairs).map(slot).collect())
}

fn recorded(
    device: &ash::Device,
    commands: vk::CommandBuffer,
    record: impl FnOnce(vk::CommandBuffer),
) -> Result<(), vk::Result> {
    // SAFETY: the command buffer is live and known to no other code.
    unsafe { device.begin_command_buffer(commands, &vk::CommandBufferBeginInfo::default()) }?;
    record(commands);
    // SAFETY: as above.
    unsafe { device.end_command_buffer(commands) }
}

/// A batch in C form whose command buffers can be changed.
pub(crate) trait Stampable: Copy {
    /// The form in which a batch names a command buffer.
    type Named: Copy;
    /// Returns the name of this command buffer.
    fn name(commands: vk::CommandBuffer) -> Self::Named;
    /// Returns the command buffers of the batch; none if there must not be others.
    ///
    /// # Safety
    ///
    /// The batch is valid.
    unsafe fn named(&self) -> Option<&[Self::Named]>;
    /// Replaces the batch's command buffers by others, which have to live as long as the batch is used.
    fn set_named(&mut self, named: &[Self::Named]);
}

/// Batches with stamps around them.
pub(crate) struct Stamped<T: Stampable> {
    /// The batches for the driver, valid while this value lives.
    pub batches: Vec<T>,
    _named: [Vec<T::Named>; 2],
}

impl<T: Stampable> Stamped<T> {
    /// Copies the batches with stamps around them, unless there is nothing to stamp or there must not be other command buffers.
    ///
    /// # Safety
    ///
    /// The batches are valid.
    pub(crate) unsafe fn new(batches: &[T], slot: Slot) -> Option<Self> {
        // SAFETY: the caller's promise.
        let named = |batch: &T| unsafe { batch.named() }.map(<[_]>::to_vec);
        let all = batches.iter().map(named).collect::<Option<Vec<_>>>()?;
        let first = all.iter().position(|named| !named.is_empty())?;
        let last = all.iter().rposition(|named| !named.is_empty())?;
        let (begin, end) = (T::name(slot.begin), T::name(slot.end));
        let mut batches = batches.to_vec();
        let before = [&[begin][..], &all[first]].concat();
        let (before, behind) = if first == last {
            ([&before[..], &[end]].concat(), Vec::new())
        } else {
            (before, [&all[last][..], &[end]].concat())
        };
        batches[first].set_named(&before);
        if first != last {
            batches[last].set_named(&behind);
        }
        Some(Self { batches, _named: [before, behind] })
    }
}

impl Stampable for sys::SubmitInfo {
    type Named = u64;

    fn name(commands: vk::CommandBuffer) -> u64 {
        commands.as_raw()
    }

    unsafe fn named(&self) -> Option<&[u64]> {
        let mut next = self.p_next.cast::<vk::BaseInStructure<'_>>();
        while !next.is_null() {
            // SAFETY: the caller's promise: each struct of the chain is valid.
            let part = unsafe { &*next };
            // This struct says for each command buffer on which GPU it runs.
            if part.s_type == vk::StructureType::DEVICE_GROUP_SUBMIT_INFO {
                return None;
            }
            next = part.p_next;
        }
        // SAFETY: the caller's promise.
        Some(unsafe { slice(self.p_command_buffers, self.command_buffer_count) })
    }

    fn set_named(&mut self, named: &[u64]) {
        (self.command_buffer_count, self.p_command_buffers) = (named.len() as u32, named.as_ptr());
    }
}

impl Stampable for sys::SubmitInfo2 {
    type Named = sys::CommandBufferSubmitInfo;

    fn name(commands: vk::CommandBuffer) -> sys::CommandBufferSubmitInfo {
        sys::CommandBufferSubmitInfo {
            s_type: vk::StructureType::COMMAND_BUFFER_SUBMIT_INFO.as_raw(),
            p_next: std::ptr::null(),
            command_buffer: commands.as_raw(),
            device_mask: 0,
        }
    }

    unsafe fn named(&self) -> Option<&[sys::CommandBufferSubmitInfo]> {
        // SAFETY: the caller's promise.
        Some(unsafe { slice(self.p_command_buffer_infos, self.command_buffer_info_count) })
    }

    fn set_named(&mut self, named: &[sys::CommandBufferSubmitInfo]) {
        (self.command_buffer_info_count, self.p_command_buffer_infos) = (named.len() as u32, named.as_ptr());
    }
}

/// # Safety
///
/// There are `count` values behind `first`, or `count` is 0.
unsafe fn slice<'a, T>(first: *const T, count: u32) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(first, count as usize) }
}

/// The device's clock, of a queue family's width, beside the system's.
#[derive(Debug)]
struct Clock {
    mask: u64,
    /// Nanoseconds of a tick.
    period: f64,
    /// The last stamp, as read and extended beyond the width of the device's counter.
    last: Option<(u64, u64)>,
    /// The shortest delays in this period and the one before, and the time at which this period began.
    delay: i64,
    delay_before: i64,
    compared: u64,
}

impl Clock {
    fn new(bits: u32, period: f32) -> Self {
        let mask = u64::MAX >> 64u32.saturating_sub(bits.clamp(1, 64));
        Self { mask, period: period.into(), last: None, delay: i64::MAX, delay_before: i64::MAX, compared: 0 }
    }

    /// Extends a stamp to nanoseconds since some moment.
    fn extend(&mut self, ticks: u64) -> u64 {
        let ticks = ticks & self.mask;
        let (last, whole) = self.last.unwrap_or((ticks, ticks));
        let ahead = ticks.wrapping_sub(last) & self.mask;
        // Stamps are not read in their order.
        let whole = if ahead <= self.mask / 2 {
            whole.wrapping_add(ahead)
        } else {
            whole.wrapping_sub(last.wrapping_sub(ticks) & self.mask)
        };
        self.last = Some((ticks, whole));
        (whole as f64 * self.period) as u64
    }

    /// Places a pair, whose end was noticed at `now`, on the system's clock.
    fn place(&mut self, [begin, end]: [u64; 2], now: u64) -> (u64, u64) {
        let (begin, end) = (self.extend(begin), self.extend(end));
        let delay = now.wrapping_sub(end).cast_signed();
        if now.saturating_sub(self.compared) >= COMPARED_FOR {
            (self.delay_before, self.delay, self.compared) = (self.delay, i64::MAX, now);
        }
        self.delay = self.delay.min(delay);
        let delay = self.delay.min(self.delay_before);
        let place = |time: u64| time.wrapping_add_signed(delay).min(now);
        (place(begin).min(place(end)), place(end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn stamps_are_placed_by_the_completion_that_was_noticed_soonest() {
        let mut clock = Clock::new(64, 1.0);
        // The device's clock is 500 ms behind; completions are noticed 3, 1 and 2 ms late.
        assert_eq!(clock.place([10 * MS, 20 * MS], 523 * MS), (513 * MS, 523 * MS));
        assert_eq!(clock.place([20 * MS, 30 * MS], 531 * MS), (521 * MS, 531 * MS));
        assert_eq!(clock.place([30 * MS, 40 * MS], 542 * MS), (531 * MS, 541 * MS));
    }

    #[test]
    fn clocks_that_drift_are_compared_anew() {
        let mut clock = Clock::new(64, 1.0);
        let mut worst = 0;
        for second in 1..100u64 {
            // The device's clock loses 10 us in a second.
            let (device, now) = (second * 1000 * MS - second * 10_000, second * 1000 * MS);
            let (_, end) = clock.place([device - MS, device], now);
            worst = worst.max(now - end);
        }
        assert!(worst <= 200_000, "{worst} ns");
    }

    #[test]
    fn narrow_counters_wrap() {
        let mut clock = Clock::new(36, 2.0);
        let top = 1u64 << 36;
        let (first, _) = clock.place([top - 100, top - 50], 1000 * MS);
        let (second, end) = clock.place([10, 60], 1000 * MS + 220);
        assert_eq!((second - first, end - second), (220, 100));
        // A pair that was stamped before the last one, and is read behind it.
        let (third, _) = clock.place([top - 20, 60], 1000 * MS + 220);
        assert_eq!(second - third, 60);
    }
}
