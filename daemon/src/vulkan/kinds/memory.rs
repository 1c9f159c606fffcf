//! Device memory in the object table.

use crate::vulkan::backing::memory::Memory;
use crate::vulkan::objects::object::{Kind, State};
use protocol::venus::generated as venus;

impl State for Memory {}

impl Kind for venus::DeviceMemory {
    type State = Memory;
}
