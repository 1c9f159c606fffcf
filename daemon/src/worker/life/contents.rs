//! Contents of memory that only the driver uses, on their way from a worker to its successor: through slots of a memory file that both have
//! imported into their drivers, so that one copies out while the other copies in.
//!
//! Both know from the snapshot how many bytes there are, so neither can be made to copy on and on.

use super::link::{Link, LinkError};
use crate::ipc::{HandOver, Slots};
use crate::worker::backend::Contents;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use vulkan::snapshot::NotMovable;
use vulkan::{Allowance, Cancel, ContextLost, MemoryFile, Piece};

/// The slots that one device copies at once: the next copy begins before the last has ended, so that the bus is never idle.
const AT_ONCE: u32 = 2;

/// The old worker's end.
pub(super) struct Outgoing {
    contents: Box<dyn Contents>,
    file: Arc<MemoryFile>,
    slots: Slots,
}

impl Outgoing {
    /// Makes room for contents that are sent, within the memory that the context may have.
    ///
    /// # Errors
    ///
    /// The context may not have the memory now, or the driver does not take it.
    pub(super) fn new(
        mut contents: Box<dyn Contents>,
        allowance: &dyn Allowance,
        cancel: &Cancel,
    ) -> Result<Self, NotMovable> {
        let slots = Slots::for_bytes(contents.bytes());
        let file = allowance.pages(slots.all(), cancel).ok().flatten();
        let file =
            file.ok_or_else(|| NotMovable::for_now("the context may not have the memory for copies"))?;
        let file = Arc::new(file);
        contents.stage(&file, slots.all()).map_err(|lost| NotMovable::for_now(lost.to_string()))?;
        Ok(Self { contents, file, slots })
    }

    /// Tells the other worker the slots that contents pass through.
    pub(super) fn announce(&self, link: &Link) -> Result<(), LinkError> {
        let (count, bytes) = (self.slots.count(), self.slots.bytes());
        link.send(&HandOver::Slots { count, bytes }, Some(self.file.as_fd()))
    }

    /// Sends all contents, and waits until they have arrived.
    ///
    /// # Errors
    ///
    /// The successor or the driver fails.
    pub(super) fn send(mut self, link: &Link) -> Result<(), NotMovable> {
        let (mut on_the_way, mut begun) = (0, 0);
        for (part, slot) in self.slots.parts(self.contents.bytes()) {
            // While no slot is free, the other worker is told of copies that end.
            while on_the_way == self.slots.count() {
                let heard = if begun == 0 { link.receive().map(Some) } else { link.try_receive() };
                if is_emptied(heard)? {
                    on_the_way -= 1;
                } else {
                    self.one_filled(link)?;
                    begun -= 1;
                }
            }
            self.contents.read(part, slot).map_err(|lost| NotMovable::for_now(lost.to_string()))?;
            (on_the_way, begun) = (on_the_way + 1, begun + 1);
            if begun == AT_ONCE {
                self.one_filled(link)?;
                begun -= 1;
            }
        }
        (0..begun).try_for_each(|_| self.one_filled(link))?;
        (0..on_the_way).try_for_each(|_| is_emptied(link.receive().map(Some)).map(drop))
    }

    /// Waits until the device has filled the next slot, and tells the other worker.
    fn one_filled(&mut self, link: &Link) -> Result<(), NotMovable> {
        self.contents.finish().map_err(|lost| NotMovable::for_now(lost.to_string()))?;
        link.send(&HandOver::Filled, None).map_err(|error| NotMovable::for_now(error.to_string()))
    }
}

/// Returns whether the other worker has emptied a slot, by its message.
fn is_emptied(heard: Result<Option<(HandOver, Option<OwnedFd>)>, LinkError>) -> Result<bool, NotMovable> {
    match heard {
        Ok(None) => Ok(false),
        Ok(Some((HandOver::Emptied, None))) => Ok(true),
        Ok(Some(_)) => Err(NotMovable::for_now("the other worker sends a message that it must not send now")),
        Err(error) => Err(NotMovable::for_now(error.to_string())),
    }
}

/// The successor's end, before the context is built up.
pub(super) struct Incoming {
    file: Arc<MemoryFile>,
    slots: Slots,
}

impl Incoming {
    /// Takes the slots that another worker has announced.
    ///
    /// # Errors
    ///
    /// The slots are not those of an honest worker.
    pub(super) fn announced(count: u32, bytes: u64, file: OwnedFd) -> Result<Self, ContextLost> {
        // The file counts for the worker that was granted it, and goes back when that worker ends.
        let file = Arc::new(MemoryFile::new(file, Piece::uncounted()));
        let slots = Slots::announced(count, bytes);
        Ok(Self { file, slots: slots.ok_or_else(|| ContextLost::broken("slots of another size or number"))? })
    }

    /// Receives all contents.
    ///
    /// # Errors
    ///
    /// The other worker or the driver fails.
    pub(super) fn receive(self, mut contents: Box<dyn Contents>, link: &Link) -> Result<(), ContextLost> {
        contents.stage(&self.file, self.slots.all())?;
        let one_emptied = |contents: &mut dyn Contents| {
            contents.finish()?;
            Ok(link.send(&HandOver::Emptied, None)?)
        };
        let mut begun = 0;
        for (part, slot) in self.slots.parts(contents.bytes()) {
            match link.receive()? {
                (HandOver::Filled, None) => contents.write(part, slot)?,
                _ => return Err(ContextLost::broken("no contents behind a snapshot that announces some")),
            }
            begun += 1;
            if begun == AT_ONCE {
                one_emptied(&mut *contents)?;
                begun -= 1;
            }
        }
        (0..begun).try_for_each(|_| one_emptied(&mut *contents))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::Channel;
    use std::ops::Range;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    const PAGE: u64 = 4096;
    const PARTS: u64 = 16;

    /// Contents without memory. They count the copies that run, and the copies that began while no other ran.
    #[derive(Clone, Default)]
    struct Counted {
        running: Arc<AtomicUsize>,
        alone: Arc<AtomicUsize>,
    }

    impl Counted {
        fn begins(&self) {
            let running = self.running.fetch_add(1, SeqCst);
            assert!(running < AT_ONCE as usize);
            self.alone.fetch_add(usize::from(running == 0), SeqCst);
        }
    }

    impl Contents for Counted {
        fn bytes(&self) -> u64 {
            PARTS * PAGE
        }

        fn stage(&mut self, _: &Arc<MemoryFile>, _: u64) -> Result<(), ContextLost> {
            Ok(())
        }

        fn read(&mut self, _: Range<u64>, _: u64) -> Result<(), ContextLost> {
            self.begins();
            Ok(())
        }

        fn write(&mut self, _: Range<u64>, _: u64) -> Result<(), ContextLost> {
            unreachable!("they only leave")
        }

        fn finish(&mut self) -> Result<(), ContextLost> {
            self.running.fetch_sub(1, SeqCst);
            Ok(())
        }
    }

    #[test]
    fn a_copy_begins_before_the_last_has_ended_as_long_as_slots_are_emptied() {
        let slots = Slots::announced(Slots::COUNT_MAX, PAGE).unwrap();
        let file = shm::create("slots", slots.all()).unwrap();
        let (ours, theirs) = Channel::pair().unwrap();
        let link = Link::new(ours.into_socket(), Cancel::default(), super::super::link::PATIENCE);
        (0..PARTS).for_each(|_| theirs.send(&HandOver::Emptied, None).unwrap());
        let counted = Counted::default();
        let contents = Box::new(counted.clone());
        let file = Arc::new(MemoryFile::new(file, Piece::uncounted()));
        Outgoing { contents, file, slots }.send(&link).unwrap();
        assert_eq!((counted.alone.load(SeqCst), counted.running.load(SeqCst)), (1, 0), "but for the first");
        for _ in 0..PARTS {
            assert!(matches!(theirs.try_receive(), Ok(Some((HandOver::Filled, None)))));
        }
    }
}
