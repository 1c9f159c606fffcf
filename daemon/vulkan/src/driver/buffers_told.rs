//! The driver's last answers about buffers and external memory. A driver takes as long for an answer as for a buffer, and most buffers of a program
//! are alike.

use parking_lot::Mutex;

/// Answers that are kept: a program has few kinds of buffers.
const KEPT: usize = 16;

/// The properties of a buffer about which the driver is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// `VkBufferCreateInfo::flags`.
    pub flags: u32,
    /// `VkBufferCreateInfo::usage`.
    pub usage: u32,
    /// `VkBufferUsageFlags2CreateInfo::usage`, if it is in the chain.
    pub more: Option<u64>,
    /// The handle types of the memory.
    pub which: u32,
}

/// The answers, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct BuffersTold(Mutex<Vec<(Look, bool)>>);

impl BuffersTold {
    /// Returns the answer about buffers with these properties; asks the driver if the answer is not known.
    ///
    /// # Errors
    ///
    /// `ask` fails: the answer stays unknown.
    pub(crate) fn of<E>(&self, look: Look, ask: impl FnOnce() -> Result<bool, E>) -> Result<bool, E> {
        let known =
            |all: &Vec<(Look, bool)>| all.iter().find(|(of, _)| *of == look).map(|(_, answer)| *answer);
        if let Some(answer) = known(&self.0.lock()) {
            return Ok(answer);
        }
        let answer = ask()?;
        let mut all = self.0.lock();
        if all.len() == KEPT {
            all.remove(0);
        }
        all.push((look, answer));
        Ok(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_asked_once_for_buffers_that_are_alike() {
        let (told, mut asked) = (BuffersTold::default(), 0);
        let mut ask = |usage, answer| {
            let look = Look { flags: 0, usage, more: None, which: 1 };
            told.of(look, || {
                asked += 1;
                answer
            })
        };
        assert_eq!(ask(1, Err("a failure is not kept")), Err("a failure is not kept"));
        assert_eq!([ask(1, Ok(true)), ask(1, Ok(false)), ask(2, Ok(false))], [Ok(true), Ok(true), Ok(false)]);
        for usage in 3..3 + KEPT as u32 {
            assert_eq!(ask(usage, Ok(true)), Ok(true));
        }
        assert_eq!(ask(1, Ok(false)), Ok(false), "it was forgotten");
        assert_eq!((asked, told.0.lock().len()), (4 + KEPT, KEPT));
    }
}
