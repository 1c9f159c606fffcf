//! Device memory in the object table.

use crate::backing::memory::Memory;
use crate::objects::object::{Kind, State};
use protocol::venus::generated as venus;

impl State for Memory {}

impl Kind for venus::DeviceMemory {
    type State = Memory;
}
