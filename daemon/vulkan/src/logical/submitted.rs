//! The submissions that name an object: the last of each queue, as a queue completes its submissions in order.
//!
//! Queues wait for each other and for the host, so a completion on one queue says nothing about another queue, even for work submitted later.

use smallvec::SmallVec;

/// A submission's number among those of its queue, from 1 on.
pub(crate) type Number = u64;

/// One submission of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The timeline of the submission's queue, which no other queue of the device has.
    pub ring_idx: u8,
    /// The submission's number in its queue.
    pub number: Number,
}

/// The last submission of each queue that names one object: none, by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submitted(SmallVec<[Place; 2]>);

impl Submitted {
    /// Adds a submission that names the object.
    pub fn add(&mut self, place: Place) {
        match self.0.iter_mut().find(|last| last.ring_idx == place.ring_idx) {
            Some(last) => last.number = last.number.max(place.number),
            None => self.0.push(place),
        }
    }

    /// Returns the last submissions that name one object or the other.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        other.places().for_each(|place| self.add(place));
        self
    }

    /// Returns the last submission of each queue.
    pub fn places(&self) -> impl Iterator<Item = Place> + '_ {
        self.0.iter().copied()
    }

    /// Returns whether no submission names the object.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Place> for Submitted {
    fn from(place: Place) -> Self {
        Self(SmallVec::from_slice(&[place]))
    }
}

impl Place {
    /// Packs the place into one word, in which the places of one queue have the order of their numbers; never 0.
    pub fn packed(self) -> u64 {
        self.number << 8 | u64::from(self.ring_idx)
    }

    /// Returns the place that a word of [`Self::packed`] stands for; none for 0.
    pub fn unpacked(word: u64) -> Option<Self> {
        (word != 0).then_some(Self { ring_idx: word as u8, number: word >> 8 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_each_queue_the_last_submission_counts_whatever_another_queue_has() {
        let at = |ring_idx, number| Place { ring_idx, number };
        let mut one = Submitted::from(at(1, 3));
        one.add(at(2, 7));
        one.add(at(1, 2));
        assert_eq!(one.places().collect::<Vec<_>>(), [at(1, 3), at(2, 7)]);
        let both = Submitted::from(at(2, 9)).and(&one);
        assert_eq!(both.places().collect::<Vec<_>>(), [at(2, 9), at(1, 3)]);
        assert!(Submitted::default().is_empty() && !both.is_empty());
    }

    #[test]
    fn places_are_words_in_their_order() {
        let at = |ring_idx, number| Place { ring_idx, number };
        for place in [at(1, 1), at(63, 1), at(1, 1 << 40)] {
            assert_eq!(Place::unpacked(place.packed()), Some(place));
        }
        assert!(at(5, 9).packed() < at(5, 10).packed());
        assert_eq!(Place::unpacked(0), None);
    }
}
