//! Instances, physical devices, devices and their memory in the object table.

use crate::backing::memory::Memory;
use crate::driver::instance::Instance;
use crate::driver::physical_device::PhysicalDevice;
use crate::logical::device::Device;
use crate::objects::object::{Kind, State};
use protocol::venus::generated as venus;

impl State for Instance {}

impl Kind for venus::Instance {
    type State = Instance;
}

impl State for PhysicalDevice {}

impl Kind for venus::PhysicalDevice {
    type State = PhysicalDevice;
}

impl State for Device {}

impl Kind for venus::Device {
    type State = Device;
}

impl State for Memory {}

impl Kind for venus::DeviceMemory {
    type State = Memory;
}
