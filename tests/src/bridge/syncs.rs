//! The sync objects of one client: 64-bit counters, and descriptors that become readable when counters arrive.
//!
//! Knows neither sockets nor the device. The client or a fence sets a counter, and the same call wakes the waiters.

use super::wire::SyncPoint;
use anyhow::{Context, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// A client's sync objects.
#[derive(Default)]
pub struct Syncs(Mutex<State>);

#[derive(Default)]
struct State {
    values: HashMap<u32, u64>,
    last_id: u32,
    waits: Vec<Wait>,
}

struct Wait {
    any: bool,
    points: Vec<SyncPoint>,
    event: EventFd,
    /// The time at which the client stops waiting; `None` for a wait without end.
    expires: Option<Instant>,
}

impl Syncs {
    /// A new counter; ids begin at 1.
    pub fn create(&self, value: u64) -> u32 {
        let mut state = self.0.lock();
        state.last_id += 1;
        let sync_id = state.last_id;
        state.values.insert(sync_id, value);
        sync_id
    }

    /// Forgets a counter; its waiters continue to wait.
    pub fn remove(&self, sync_id: u32) {
        self.0.lock().values.remove(&sync_id);
    }

    /// The present value.
    pub fn read(&self, sync_id: u32) -> Option<u64> {
        self.0.lock().values.get(&sync_id).copied()
    }

    /// Sets counters and ends the waits that these complete. Removed counters are skipped.
    pub fn write(&self, points: &[SyncPoint]) {
        let mut state = self.0.lock();
        let State { values, waits, .. } = &mut *state;
        for point in points {
            if let Some(value) = values.get_mut(&point.sync_id) {
                *value = point.value;
            }
        }
        let now = Instant::now();
        waits.retain(|wait| {
            let over = wait.is_over(values);
            if over {
                // The counter of an eventfd written once cannot overflow.
                let _ = wait.event.write(1);
            }
            !over && wait.expires.is_none_or(|expires| expires > now)
        });
    }

    /// A descriptor that is readable once all (or `any`) of the points are reached. `timeout_ms` of `u32::MAX` is for ever.
    pub fn wait(&self, any: bool, timeout_ms: u32, points: Vec<SyncPoint>) -> Result<EventFd> {
        let mut state = self.0.lock();
        for point in &points {
            state.values.get(&point.sync_id).with_context(|| format!("no sync {}", point.sync_id))?;
        }
        let event = EventFd::new(EFD_CLOEXEC | EFD_NONBLOCK).context("an eventfd")?;
        let expires =
            (timeout_ms != u32::MAX).then(|| Instant::now() + Duration::from_millis(timeout_ms.into()));
        let wait = Wait { any, points, event, expires };
        if wait.is_over(&state.values) {
            wait.event.write(1)?;
            return Ok(wait.event);
        }
        let event = wait.event.try_clone().context("an eventfd")?;
        state.waits.push(wait);
        Ok(event)
    }
}

impl Wait {
    fn is_over(&self, values: &HashMap<u32, u64>) -> bool {
        let mut reached =
            self.points.iter().map(|p| values.get(&p.sync_id).is_some_and(|&value| value >= p.value));
        if self.any { reached.any(|reached| reached) } else { reached.all(|reached| reached) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(event: &EventFd) -> bool {
        event.read().is_ok()
    }

    #[test]
    fn wait_for_all_ends_with_the_last_counter() {
        let syncs = Syncs::default();
        let points = [0, 0].map(|value| SyncPoint { sync_id: syncs.create(value), value: 5 });
        let event = syncs.wait(false, u32::MAX, points.to_vec()).unwrap();
        syncs.write(&points[..1]);
        assert!(!is_readable(&event));
        syncs.write(&points[1..]);
        assert!(is_readable(&event));
    }

    #[test]
    fn wait_for_any_ends_with_the_first_counter() {
        let syncs = Syncs::default();
        let points = [0, 0].map(|value| SyncPoint { sync_id: syncs.create(value), value: 5 });
        let event = syncs.wait(true, u32::MAX, points.to_vec()).unwrap();
        syncs.write(&[SyncPoint { value: 4, ..points[1] }]);
        assert!(!is_readable(&event));
        syncs.write(&points[1..]);
        assert!(is_readable(&event));
    }

    #[test]
    fn reached_wait_is_readable_at_once_and_an_unknown_sync_is_an_error() {
        let syncs = Syncs::default();
        let sync_id = syncs.create(7);
        assert!(is_readable(&syncs.wait(false, 0, vec![SyncPoint { sync_id, value: 7 }]).unwrap()));
        assert!(syncs.wait(false, 0, vec![SyncPoint { sync_id: 99, value: 0 }]).is_err());
    }

    #[test]
    fn expired_waits_are_forgotten() {
        let syncs = Syncs::default();
        let point = SyncPoint { sync_id: syncs.create(0), value: 1 };
        let event = syncs.wait(false, 0, vec![point]).unwrap();
        syncs.write(&[SyncPoint { value: 0, ..point }]);
        assert!(syncs.0.lock().waits.is_empty());
        assert!(!is_readable(&event));
    }
}
