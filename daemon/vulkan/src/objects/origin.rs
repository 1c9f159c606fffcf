//! The origins of objects: the commands that created them, and the objects that those commands name.
//!
//! A snapshot makes an object anew by the command that created it, which may name objects that the guest has destroyed since: a pipeline outlives its
//! shader modules. So an object that was used to make others leaves its own origin behind ([`Remains`]), for as long as one of the others exists. An
//! origin holds only the objects that its own command names. A chain of objects, each made of the next, is held to a depth of [`DEPTH_MAX`].

use super::encoding::{Encoding, Shared};
use super::usage::{Usage, Uses};
use protocol::venus::generated::ObjectType;
use smallvec::SmallVec;
use std::sync::Arc;

/// The longest chain of objects in which each was made of the next. Valid programs need a handful: a view and its image, or a pipeline and the
/// libraries that it is linked from.
const DEPTH_MAX: u8 = 16;

/// The origin of a new object.
#[derive(Debug)]
pub struct Origin {
    /// The encoding of the command that creates the object.
    pub created_by: Encoding,
    /// The objects that the command names.
    pub made_of: MadeOf,
}

/// The objects that an object was made of.
#[derive(Debug, Default)]
pub enum MadeOf {
    /// The object was made of none that could be destroyed before it.
    #[default]
    Nothing,
    /// The object is the only one that its command made.
    Own(Named),
    /// The command made several objects.
    Shared(Arc<Named>),
    /// The chain of objects, each made of the next, is too long.
    TooDeep,
}

/// Objects that a creating command names. Each leaves its remains behind while this value exists.
#[derive(Debug)]
pub struct Named(SmallVec<[Arc<Usage>; 4]>);

/// Collects the objects that a creating command names while it is lowered.
#[derive(Debug)]
pub(crate) struct Names(Uses);

/// The remains of an object that is gone for the guest.
#[derive(Debug)]
pub struct Remains {
    /// The guest's id, which may be another's by now.
    pub id: u64,
    /// The kind of the object.
    pub kind: ObjectType,
    /// The encoding of the command that created the object.
    pub created_by: Encoding,
}

/// Returns whether objects of a kind may be destroyed before the objects that were made of them: pools, devices and queues may not.
pub(crate) const fn may_leave(kind: ObjectType) -> bool {
    !matches!(
        kind,
        ObjectType::COMMAND_POOL
            | ObjectType::DESCRIPTOR_POOL
            | ObjectType::DEVICE
            | ObjectType::PHYSICAL_DEVICE
            | ObjectType::INSTANCE
            | ObjectType::QUEUE
    )
}

impl Names {
    /// Returns the uses that the names are added to.
    pub(crate) fn uses(&self) -> &Uses {
        &self.0
    }

    fn take(&self) -> Named {
        Named(self.0.take())
    }

    /// Returns the origin of the one object that a command makes.
    pub(crate) fn origin(self, created_by: Encoding) -> Origin {
        let named = self.take();
        let made_of = match named.depth() {
            None => MadeOf::Nothing,
            Some(DEPTH_MAX..) => MadeOf::TooDeep,
            Some(_) => MadeOf::Own(named),
        };
        Origin { created_by, made_of }
    }

    /// Returns the origins of the objects that a command makes together.
    pub(crate) fn origins(self, created_by: Shared) -> impl Fn() -> Origin {
        let named = Arc::new(self.take());
        let depth = named.depth();
        move || {
            let made_of = match depth {
                None => MadeOf::Nothing,
                Some(DEPTH_MAX..) => MadeOf::TooDeep,
                Some(_) => MadeOf::Shared(Arc::clone(&named)),
            };
            Origin { created_by: created_by.encoding(), made_of }
        }
    }
}

impl Default for Names {
    fn default() -> Self {
        Self(Uses::of_creation())
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl Named {
    /// Returns the length of the longest chain of objects that these were made of; none if there are no names.
    fn depth(&self) -> Option<u8> {
        self.0.iter().map(|usage| usage.depth()).max()
    }

    /// The usages of the objects.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Usage>> {
        self.0.iter()
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        self.0.iter().for_each(|usage| usage.release());
    }
}

impl MadeOf {
    /// Returns the length of the longest chain of objects that the object was made of.
    pub fn depth(&self) -> u8 {
        match self {
            Self::Nothing => 0,
            Self::Own(named) => named.depth().map_or(0, |depth| depth + 1),
            Self::Shared(named) => named.depth().map_or(0, |depth| depth + 1),
            Self::TooDeep => DEPTH_MAX,
        }
    }

    /// Returns the bytes that are kept beside the value.
    #[cfg(test)]
    pub fn kept_bytes(&self) -> usize {
        let spilled = |Named(all): &Named| if all.spilled() { size_of_val(&**all) } else { 0 };
        match self {
            Self::Nothing | Self::TooDeep => 0,
            Self::Own(named) => spilled(named),
            Self::Shared(named) => size_of::<Named>() + spilled(named),
        }
    }

    /// Returns the usages of the objects that the object was made of; none if they are not known.
    pub fn usages(&self) -> Option<SmallVec<[Arc<Usage>; 2]>> {
        match self {
            Self::Nothing => Some(SmallVec::new()),
            Self::Own(named) => Some(named.iter().cloned().collect()),
            Self::Shared(named) => Some(named.iter().cloned().collect()),
            Self::TooDeep => None,
        }
    }
}

impl From<Encoding> for Origin {
    fn from(created_by: Encoding) -> Self {
        Self { created_by, made_of: MadeOf::Nothing }
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoding::Kept;
    use super::*;

    #[test]
    fn chains_are_not_longer_than_they_may_be_and_nothing_of_them_stays() {
        let kept = Kept::default();
        let mut last = Arc::new(Usage::of(MadeOf::Nothing));
        let mut lengths = Vec::new();
        for id in 0..100 {
            let names = Names::default();
            names.uses().add(&last);
            names.uses().add(&last);
            let Origin { created_by, made_of } = names.origin(kept.keep(&[0; 10]));
            let next = Arc::new(Usage::of(made_of));
            lengths.push(next.made_of().map(|usages| usages.len()));
            // The previous object is gone now.
            last.end_leaving(|| Some(Remains { id, kind: ObjectType::PIPELINE, created_by }));
            last = next;
        }
        assert_eq!(lengths.iter().filter(|length| **length == Some(1)).count(), usize::from(DEPTH_MAX));
        assert!(lengths[usize::from(DEPTH_MAX)..].iter().all(Option::is_none));
        last.end_leaving(|| None);
        assert_eq!(kept.bytes(), 0);
    }

    #[test]
    fn what_several_are_made_of_stays_until_the_last_is_gone() {
        let kept = Kept::default();
        let module = Arc::new(Usage::of(MadeOf::Nothing));
        let names = Names::default();
        names.uses().add(&module);
        let next = names.origins(kept.share(&[0; 100]));
        let pipelines = [next(), next()].map(|origin| (Usage::of(origin.made_of), origin.created_by));
        drop(next);
        let created_by = kept.keep(&[0; 10]);
        module.end_leaving(|| Some(Remains { id: 1, kind: ObjectType::SHADER_MODULE, created_by }));
        let [one, other] = pipelines;
        drop(one);
        assert_eq!((kept.bytes(), module.with_remains(|left| left.id)), (110, Some(1)));
        // A recording that names an object keeps the objects that it was made of no longer than the guest does.
        other.0.end_leaving(|| None);
        assert_eq!(module.with_remains(|left| left.id), None);
    }
}
