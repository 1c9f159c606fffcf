//! One object of a guest: its kind, the host's handle, and the state that objects of this kind need.

#![allow(unsafe_code, reason = "the kind of an object says the type of its state")]

use super::encoding::Encoding;
use super::origin::Origin;
use super::usage::Usage;
use crate::context::error::{Fault, inconsistent};
use crate::logical::device::Device;
use protocol::venus::generated::ObjectType;
use std::any::Any;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

/// A guest's name for an object, typed. Generated code implements it.
///
/// # Safety
///
/// No two types have the same kind.
pub unsafe trait Handle: Copy {
    /// The kind of object that such a name may stand for.
    const KIND: ObjectType;
    /// The id; 0 is `VK_NULL_HANDLE`.
    fn id(self) -> u64;
}

/// A kind of object that needs more than the host's handle.
pub trait Kind: Handle {
    /// The type of the state.
    type State: State;
}

/// The state of an object, as code that does not know the object's kind sees it.
pub trait State: Any + Debug + Send + Sync {
    /// Returns whether threads of ours wait for the object, so that it must not be destroyed yet.
    fn is_watched(&self) -> bool {
        false
    }

    /// Tells the state that the object is destroyed with its device.
    fn close(&self) {}
}

/// State that fits the kind `H`, or none.
#[derive(Debug)]
pub struct StateOf<H> {
    held: Option<Held>,
    kind: PhantomData<H>,
}

/// State of any kind. Its address is noted, since an `Arc` of a trait object would have to compute the address from the alignment each time.
#[derive(Debug)]
struct Held {
    state: Arc<dyn State>,
    at: *const (),
}

// SAFETY: `at` is where `state` lies, which is `Send` and `Sync`, and is used to make shared references to it only.
unsafe impl Send for Held {}
// SAFETY: as above.
unsafe impl Sync for Held {}

impl<H: Handle> StateOf<H> {
    /// Returns no state, for an object that has nothing beside its handle.
    pub fn none() -> Self {
        Self { held: None, kind: PhantomData }
    }
}

impl<H: Kind> StateOf<H> {
    /// Wraps the state of an object.
    pub fn of(state: H::State) -> Self {
        Self::shared(Arc::new(state))
    }

    /// Wraps the state of an object, which others hold as well.
    pub fn shared(state: Arc<H::State>) -> Self {
        let at = Arc::as_ptr(&state).cast();
        Self { held: Some(Held { state, at }), kind: PhantomData }
    }
}

/// One live object.
#[derive(Debug)]
pub struct Object {
    kind: ObjectType,
    /// The host's handle.
    pub raw: u64,
    /// The device that the object belongs to; none for instances, physical devices and devices.
    pub device: Option<Arc<Device>>,
    /// The object's state, of the type that goes with the kind.
    held: Option<Held>,
    /// The object's usage: whether it is alive, and which recordings and submissions use it.
    pub usage: Arc<Usage>,
    /// The encoding of the command that created the object; none once the object has left it to its remains.
    pub created_by: Option<Encoding>,
}

impl Object {
    /// Creates an object of the kind `H` that nothing uses.
    pub fn new<H: Handle>(
        raw: u64,
        device: Option<Arc<Device>>,
        state: StateOf<H>,
        origin: impl Into<Origin>,
    ) -> Self {
        let Origin { created_by, made_of } = origin.into();
        let (usage, created_by) = (Arc::new(Usage::of(made_of)), Some(created_by));
        Self { kind: H::KIND, raw, device, held: state.held, usage, created_by }
    }

    /// Returns the object's kind.
    #[inline]
    pub fn kind(&self) -> ObjectType {
        self.kind
    }

    /// Returns the object's state as that of the kind `H`; none if it is of another kind or has no state.
    #[inline]
    pub fn get<H: Kind>(&self) -> Option<&H::State> {
        // SAFETY: the kind was looked at.
        if self.kind == H::KIND { unsafe { self.get_unchecked::<H>() } } else { None }
    }

    /// Returns the state of an object that is known to be of the kind `H`; none if it has no state.
    ///
    /// # Safety
    ///
    /// The object is of the kind `H`.
    #[inline]
    pub unsafe fn get_unchecked<H: Kind>(&self) -> Option<&H::State> {
        let held = self.held.as_ref()?;
        // SAFETY: `new` gives an object of this kind no state but `H::State`, since no other type of handles has the kind, and the state
        // lives as long as the object.
        Some(unsafe { &*held.at.cast::<H::State>() })
    }

    /// Returns the object's state as [`Self::get`] does, to be held.
    #[inline]
    pub fn get_shared<H: Kind>(&self) -> Option<Arc<H::State>> {
        let held = self.held.as_ref().filter(|_| self.kind == H::KIND)?;
        let state = held.at.cast::<H::State>();
        // SAFETY: as above, so the pointer is that of an `Arc` of this type, which lives as long as the object.
        unsafe { Arc::increment_strong_count(state) };
        // SAFETY: as above; it was counted just now.
        Some(unsafe { Arc::from_raw(state) })
    }

    /// Returns the state of an object that the table has found to be of the kind `H`.
    ///
    /// # Errors
    ///
    /// The object has no state.
    #[inline]
    pub fn state<H: Kind>(&self) -> Result<&H::State, Fault> {
        self.get::<H>().ok_or_else(inconsistent)
    }

    /// Returns the object's state as [`Self::state`] does, to be held.
    ///
    /// # Errors
    ///
    /// As [`Self::state`].
    #[inline]
    pub fn shared<H: Kind>(&self) -> Result<Arc<H::State>, Fault> {
        self.get_shared::<H>().ok_or_else(inconsistent)
    }

    /// Returns the bytes that are kept of the object, without the values that its state refers to.
    #[cfg(test)]
    pub fn kept_bytes(&self) -> usize {
        let counts = 2 * size_of::<usize>();
        let state = self.held.as_ref().map_or(0, |held| counts + size_of_val(&*held.state));
        let encoding = self.created_by.as_ref().map_or(0, |created_by| created_by.len());
        size_of::<Self>() + state + counts + self.usage.kept_bytes() + encoding
    }

    /// Returns whether threads of ours wait for the object.
    pub fn is_watched(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.state.is_watched())
    }

    /// Tells the object's state that the object is destroyed with its device.
    pub fn close(&self) {
        if let Some(held) = &self.held {
            held.state.close();
        }
    }
}
