//! One object of a guest: its kind, the host's handle, and what its kind needs beside that.

#![allow(unsafe_code, reason = "the kind of an object says the type of its state")]

use super::encoding::Encoding;
use super::usage::Usage;
use crate::vulkan::context::error::{Fault, inconsistent};
use crate::vulkan::logical::device::Device;
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
    /// The type of what it needs.
    type State: State;
}

/// State of an object, as those see it who do not know its kind.
pub trait State: Any + Debug + Send + Sync {
    /// Threads of ours wait for the object, so it is not to be destroyed yet.
    fn is_watched(&self) -> bool {
        false
    }

    /// The object is destroyed with its device.
    fn close(&self) {}
}

/// State that fits the kind `H`, or none.
#[derive(Debug)]
pub struct StateOf<H> {
    state: Option<Arc<dyn State>>,
    kind: PhantomData<H>,
}

impl<H: Handle> StateOf<H> {
    /// The object has nothing beside its handle.
    pub fn none() -> Self {
        Self { state: None, kind: PhantomData }
    }
}

impl<H: Kind> StateOf<H> {
    /// The object has this state.
    pub fn of(state: H::State) -> Self {
        Self::shared(Arc::new(state))
    }

    /// The object has this state, which others hold as well.
    pub fn shared(state: Arc<H::State>) -> Self {
        Self { state: Some(state), kind: PhantomData }
    }
}

/// One live object.
#[derive(Debug)]
pub struct Object {
    kind: ObjectType,
    /// The host's handle.
    pub raw: u64,
    /// The device that it belongs to; none for instances, physical devices and devices.
    pub device: Option<Arc<Device>>,
    /// Of the type that goes with the kind.
    state: Option<Arc<dyn State>>,
    /// Who uses it.
    pub usage: Arc<Usage>,
    /// The encoding of the command that created it.
    pub created_by: Encoding,
}

impl Object {
    /// An object of the kind `H` that nobody uses.
    pub fn new<H: Handle>(
        raw: u64,
        device: Option<Arc<Device>>,
        state: StateOf<H>,
        created_by: Encoding,
    ) -> Self {
        Self { kind: H::KIND, raw, device, state: state.state, usage: Arc::default(), created_by }
    }

    /// Its kind.
    #[inline]
    pub fn kind(&self) -> ObjectType {
        self.kind
    }

    /// What it has as one of the kind `H`; nothing if it is of another kind or has no state.
    #[inline]
    pub fn get<H: Kind>(&self) -> Option<&H::State> {
        let state = self.state.as_ref().filter(|_| self.kind == H::KIND)?;
        // SAFETY: `new` gives an object of this kind no state but `H::State`, since no other type of handles has the kind.
        Some(unsafe { &*Arc::as_ptr(state).cast::<H::State>() })
    }

    /// What it has as one of the kind `H`, to be held.
    #[inline]
    pub fn get_shared<H: Kind>(&self) -> Option<Arc<H::State>> {
        let state = self.state.as_ref().filter(|_| self.kind == H::KIND)?;
        let state = Arc::into_raw(Arc::clone(state)).cast::<H::State>();
        // SAFETY: as above, so the pointer is that of an `Arc` of this type.
        Some(unsafe { Arc::from_raw(state) })
    }

    /// What it has as one of the kind `H`, which the table has found it to be.
    ///
    /// # Errors
    ///
    /// It has no state.
    #[inline]
    pub fn state<H: Kind>(&self) -> Result<&H::State, Fault> {
        self.get::<H>().ok_or_else(inconsistent)
    }

    /// The same, to be held.
    ///
    /// # Errors
    ///
    /// As [`Self::state`].
    #[inline]
    pub fn shared<H: Kind>(&self) -> Result<Arc<H::State>, Fault> {
        self.get_shared::<H>().ok_or_else(inconsistent)
    }

    /// Threads of ours wait for it.
    pub fn is_watched(&self) -> bool {
        self.state.as_ref().is_some_and(|state| state.is_watched())
    }

    /// It is destroyed with its device.
    pub fn close(&self) {
        if let Some(state) = &self.state {
            state.close();
        }
    }
}
