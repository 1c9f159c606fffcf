//! The state of the null driver: the live handles with their parents, and the next failure.

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

/// Kinds of objects, as a handle's low byte.
#[derive(Clone, Copy)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names of Vulkan's objects")]
pub(super) enum Kind {
    Instance = 1,
    PhysicalDevice,
    Device,
    Queue,
    CommandPool,
    CommandBuffer,
    DescriptorPool,
    DescriptorSet,
    DescriptorSetLayout,
    DescriptorUpdateTemplate,
    Buffer,
    BufferView,
    Event,
    Fence,
    Framebuffer,
    Image,
    ImageView,
    Memory,
    Pipeline,
    PipelineCache,
    PipelineLayout,
    PrivateDataSlot,
    QueryPool,
    RenderPass,
    Sampler,
    SamplerYcbcrConversion,
    Semaphore,
    ShaderModule,
}

#[derive(Default)]
struct State {
    /// Handles and their parents.
    live: FxHashMap<u64, u64>,
    /// Handles that are asked for rather than created: by parent, kind and index.
    found: FxHashMap<(u64, u8, u64), u64>,
    /// Fences that are signalled (at once, by the submission that names them), and events that are set.
    signalled: FxHashSet<u64>,
    /// The values of timelines.
    counters: FxHashMap<u64, u64>,
    /// Fences that will be signalled, while nothing completes.
    stalled: Option<Vec<u64>>,
    /// The driver has lost all devices.
    lost: bool,
    last: u64,
    /// The addresses of buffers and memory that have one, and a number for devices that give addresses again. `chosen` counts chosen addresses.
    addresses: FxHashMap<u64, u64>,
    chosen: u64,
    /// The number of command buffers that were submitted.
    run: u64,
    random: u64,
    /// Objects may have been left by a lost context, so parents may be destroyed before them.
    leaky: bool,
    /// Nothing fails.
    reliable: bool,
}

impl State {
    /// The device that a handle belongs to.
    fn device(&self, mut handle: u64) -> Option<u64> {
        while handle as u8 != Kind::Device as u8 {
            handle = *self.live.get(&handle)?;
        }
        Some(handle)
    }
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

/// The mark of handles, so that no number of a guest's is a handle by chance.
const MARK: u64 = 0x4e55 << 48;

static TAKEN: Mutex<()> = Mutex::new(());

/// The version of the newest instance that the driver makes.
pub(super) static NEWEST_INSTANCE: AtomicU32 = AtomicU32::new(u32::MAX);

/// The first query whose result is not available, if the caller also asks for availability.
pub(super) static AVAILABLE: AtomicU32 = AtomicU32::new(u32::MAX);

/// True if the driver says that addresses can be captured and replayed.
pub(super) static REPLAYS: AtomicBool = AtomicBool::new(true);

/// True if nothing is checked, and nothing fails: the driver then costs next to nothing.
static TRUSTING: AtomicBool = AtomicBool::new(false);

/// The last fence that was submitted or reset is signalled. Kept while the driver is [`TRUSTING`]: a run that counts uses one fence at a time.
static SIGNALLED: AtomicBool = AtomicBool::new(false);

/// The number of calls while the driver is [`TRUSTING`].
static CALLS: AtomicU64 = AtomicU64::new(0);

/// The function that is called when a barrier is recorded, with the barrier's first number.
type AtBarrier = Arc<dyn Fn(u32) + Send + Sync>;

static AT_BARRIERS: Mutex<Option<AtBarrier>> = Mutex::new(None);

/// All recorded writes into buffers, with their places.
#[cfg(test)]
pub(crate) static RESULTS: Mutex<Vec<(u64, Written)>> = Mutex::new(Vec::new());

/// Bytes, or a range of query results: the first query and the number of queries.
#[cfg(test)]
pub(crate) type Written = Result<Vec<u8>, (u32, u32)>;

/// Makes barriers call `tell` from now on, until the driver is taken anew.
#[cfg(test)]
pub fn at_barriers(tell: impl Fn(u32) + Send + Sync + 'static) {
    *AT_BARRIERS.lock() = Some(Arc::new(tell));
}

/// Notes that a barrier is recorded, and calls the function of `at_barriers`.
pub(super) fn barrier(at: u32) {
    if !is_trusting() {
        // Without the lock, so that other threads may record meanwhile.
        let tell = AT_BARRIERS.lock().clone();
        tell.iter().for_each(|tell| tell(at));
    }
}

/// The lock by which one run has taken the driver.
#[expect(dead_code, reason = "it is held, not read")]
pub struct Exclusive(MutexGuard<'static, ()>);

/// Waits for the driver and forgets everything; failures come as `seed` says.
pub(crate) fn begin(seed: u64) -> Exclusive {
    let exclusive = Exclusive(TAKEN.lock());
    *AT_BARRIERS.lock() = None;
    super::caches::forget();
    #[cfg(test)]
    {
        RESULTS.lock().clear();
        super::memory::forget();
        super::exports::forget();
    }
    *STATE.lock() = State { random: seed | 1, ..State::default() };
    TRUSTING.store(false, Ordering::Relaxed);
    NEWEST_INSTANCE.store(u32::MAX, Ordering::Relaxed);
    AVAILABLE.store(u32::MAX, Ordering::Relaxed);
    REPLAYS.store(true, Ordering::Relaxed);
    exclusive
}

/// Switches off all checks and failures from now on.
pub(super) fn trust() {
    leak();
    TRUSTING.store(true, Ordering::Relaxed);
}

/// Returns whether nothing is checked.
pub(super) fn is_trusting() -> bool {
    TRUSTING.load(Ordering::Relaxed)
}

/// The number of calls of the driver since [`trust`].
pub(super) fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

/// Allows objects to be left at the end from now on.
pub(crate) fn leak() {
    STATE.lock().leaky = true;
}

/// Switches off all failures from now on.
pub(crate) fn rely() {
    STATE.lock().reliable = true;
}

/// The value of a timeline.
pub(super) fn counter(semaphore: u64) -> u64 {
    STATE.lock().counters.get(&semaphore).copied().unwrap_or_default()
}

/// Changes the value of a timeline.
pub(super) fn set_counter(semaphore: u64, value: u64) {
    if !is_trusting() {
        STATE.lock().counters.insert(semaphore, value);
    }
}

/// Counts a command buffer that is submitted.
pub(super) fn runs() {
    STATE.lock().run += 1;
}

/// The number of command buffers that were submitted.
pub(crate) fn run() -> u64 {
    STATE.lock().run
}

/// The number of objects that are alive.
pub fn live() -> usize {
    STATE.lock().live.len()
}

/// Returns whether no object may be left at the end.
pub(crate) fn is_tight() -> bool {
    !STATE.lock().leaky
}

/// A new handle.
pub(super) fn add(kind: u8, parent: u64) -> u64 {
    let mut state = STATE.lock();
    state.last += 1;
    let handle = MARK | state.last << 8 | u64::from(kind);
    if !is_trusting() {
        state.live.insert(handle, parent);
    }
    handle
}

/// The handle of an object that is only asked for.
pub(super) fn child(parent: u64, kind: u8, index: u64) -> u64 {
    let found = STATE.lock().found.get(&(parent, kind, index)).copied();
    found.unwrap_or_else(|| {
        let handle = add(kind, parent);
        STATE.lock().found.insert((parent, kind, index), handle);
        handle
    })
}

/// The index, among the children of its parent, of an object that is only asked for.
pub(super) fn index(handle: u64) -> u64 {
    let state = STATE.lock();
    let found = state.found.iter().find(|(_, found)| **found == handle);
    found.map(|((_, _, index), _)| *index).expect("it was asked for before")
}

/// Panics unless the handle lives and is of the kind, if one is given. A null handle passes, as it harms only the guest.
#[track_caller]
pub(super) fn assert_live(handle: u64, kind: Option<u8>) {
    if is_trusting() {
        CALLS.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if handle == 0 {
        return;
    }
    assert!(STATE.lock().live.contains_key(&handle), "{handle:#x} does not live");
    assert!(kind.is_none_or(|kind| handle as u8 == kind), "{handle:#x} is of another kind than {kind:?}");
}

/// Gives a handle an address, unless it is 0.
pub(super) fn set_address(handle: u64, address: u64) {
    if address != 0 && !is_trusting() {
        STATE.lock().addresses.insert(handle, address);
    }
}

/// The address of a handle; 0 if it has none.
pub(crate) fn address(handle: u64) -> u64 {
    STATE.lock().addresses.get(&handle).copied().unwrap_or_default()
}

/// Returns whether an object of a kind and a device has this address.
pub(super) fn has_address(device: u64, kind: Kind, address: u64) -> bool {
    let State { live, addresses, .. } = &*STATE.lock();
    let mut all = addresses.iter().filter(|(handle, _)| **handle as u8 == kind as u8);
    all.any(|(handle, known)| *known == address && live.get(handle) == Some(&device))
}

/// The number of the next address, from 1.
pub(super) fn next_address() -> u64 {
    let mut state = STATE.lock();
    state.chosen += 1;
    state.chosen
}

/// Panics like [`assert_live`], and also unless the handle is of the same device as `other`.
#[track_caller]
pub(super) fn assert_of(other: u64, handle: u64, kind: Kind) {
    if is_trusting() {
        return;
    }
    assert_live(handle, Some(kind as u8));
    if handle != 0 && other != 0 {
        let state = STATE.lock();
        assert_eq!(
            state.device(handle),
            state.device(other),
            "{handle:#x} is of another device than {other:#x}"
        );
    }
}

/// Ends a handle. Panics unless it lives, is of the kind and belongs to `parent`.
#[track_caller]
pub(super) fn remove(handle: u64, kind: u8, parent: u64) {
    if is_trusting() {
        return;
    }
    assert_live(handle, Some(kind));
    let mut state = STATE.lock();
    state.addresses.remove(&handle);
    assert_eq!(state.live.remove(&handle), Some(parent), "{handle:#x} has another parent");
}

/// Ends the handle of an object that was allocated from a pool; null is skipped.
#[track_caller]
pub(super) fn remove_child(handle: u64) {
    if handle != 0 && !is_trusting() {
        assert!(STATE.lock().live.remove(&handle).is_some(), "{handle:#x} does not live");
    }
}

/// Ends the handles of all that was allocated from a pool.
pub(super) fn remove_children(pool: u64) {
    if is_trusting() {
        return;
    }
    STATE.lock().live.retain(|_, parent| *parent != pool);
}

/// Ends an instance or a device, and with it the handles that were only asked for. Panics if other objects of it are left.
#[track_caller]
pub(super) fn remove_parent(handle: u64, kind: u8) {
    if is_trusting() {
        return;
    }
    assert_live(handle, Some(kind));
    let mut state = STATE.lock();
    let State { live, found, leaky, addresses, .. } = &mut *state;
    addresses.remove(&handle);
    found.retain(|(parent, ..), child| {
        let gone = *parent == handle;
        if gone && *child as u8 != Kind::PhysicalDevice as u8 {
            live.remove(child);
        }
        !gone
    });
    if kind == Kind::Instance as u8 {
        // Devices belong to the physical device.
        let physical: Vec<_> =
            live.iter().filter(|(_, parent)| **parent == handle).map(|(at, _)| *at).collect();
        for physical in physical {
            assert!(
                *leaky || live.values().all(|parent| *parent != physical),
                "a device outlives its instance"
            );
            live.remove(&physical);
        }
    }
    let left: Vec<_> = live.iter().filter(|(_, parent)| **parent == handle).collect();
    assert!(*leaky || left.is_empty(), "{handle:#x} ends before {left:x?}");
    live.remove(&handle);
}

/// Marks a fence or an event as signalled or reset.
pub(super) fn set_signalled(fence: u64, signalled: bool) {
    if is_trusting() {
        return SIGNALLED.store(signalled, Ordering::Relaxed);
    }
    let State { signalled: all, stalled, .. } = &mut *STATE.lock();
    match (signalled, stalled) {
        (true, Some(stalled)) => stalled.push(fence),
        (true, None) => _ = all.insert(fence),
        (false, _) => _ = all.remove(&fence),
    }
}

/// Lets nothing complete that is submitted from now on.
#[cfg(test)]
pub(crate) fn stall() {
    STATE.lock().stalled = Some(Vec::new());
}

/// Lets everything complete.
#[cfg(test)]
pub(crate) fn release() {
    let State { signalled, stalled, .. } = &mut *STATE.lock();
    signalled.extend(stalled.take().unwrap_or_default());
}

/// Has the driver lose all devices, which it reports when it is asked for fences.
#[cfg(test)]
pub(crate) fn lose_devices() {
    STATE.lock().lost = true;
}

/// Returns whether all devices are lost.
pub(super) fn has_lost_devices() -> bool {
    !is_trusting() && STATE.lock().lost
}

/// Returns whether nothing completes.
pub(super) fn is_stalled() -> bool {
    !is_trusting() && STATE.lock().stalled.is_some()
}

/// Returns whether a fence or an event is signalled.
pub(super) fn is_signalled(fence: u64) -> bool {
    if is_trusting() { SIGNALLED.load(Ordering::Relaxed) } else { STATE.lock().signalled.contains(&fence) }
}

/// The failure of the next creation, if it is to fail: one in sixteen does, with one of two results.
pub(super) fn failure() -> Option<i32> {
    if is_trusting() {
        return None;
    }
    let mut state = STATE.lock();
    if state.reliable {
        return None;
    }
    // xorshift64
    state.random ^= state.random << 13;
    state.random ^= state.random >> 7;
    state.random ^= state.random << 17;
    match state.random >> 32 & 31 {
        0 => Some(-1),
        1 => Some(-2),
        _ => None,
    }
}
