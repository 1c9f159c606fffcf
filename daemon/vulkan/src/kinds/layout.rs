//! Layouts of descriptor sets and of pipelines.
//!
//! A guest may destroy a layout while sets and recordings that were made from it go on, and drivers differ in what they still look
//! up in a destroyed layout. So every object that is made from a layout keeps it, and the host's layout is destroyed with the last of them.

#![allow(unsafe_code, reason = "the driver is called, under the invariants at the head of `vulkan`")]

use crate::logical::device::Device;
use crate::objects::object::{Kind, State};
use ash::vk;
use protocol::venus::generated::{self as venus, DescriptorBindingFlags, ObjectType};
use std::sync::Arc;

/// A layout of the host's driver.
#[derive(Debug)]
pub struct HostLayout {
    kind: ObjectType,
    raw: u64,
    device: Arc<Device>,
}

impl HostLayout {
    /// Takes over a layout that a device has just made.
    pub fn new(kind: ObjectType, raw: u64, device: Arc<Device>) -> Self {
        Self { kind, raw, device }
    }

    /// Limits of its device.
    pub fn limits(&self) -> &vk::PhysicalDeviceLimits {
        &self.device.physical.limits
    }
}

impl Drop for HostLayout {
    fn drop(&mut self) {
        // SAFETY: every object made from the layout holds it, and so does the table; this was the last.
        unsafe { self.device.destroy_layout(self.kind, self.raw) }
    }
}

/// A layout of descriptor sets.
#[derive(Debug)]
pub struct SetLayout {
    /// The layout that the guest asked for.
    pub facts: SetFacts,
    /// The host's layout, which ends with this one.
    #[allow(dead_code, reason = "owned for its end alone")]
    pub host: HostLayout,
}

/// The facts about a layout of descriptor sets that the object table keeps.
#[derive(Debug, PartialEq, Eq)]
pub struct SetFacts {
    /// Bindings, ascending.
    pub bindings: Vec<Binding>,
    /// Dynamic offsets that a set takes.
    pub dynamic: u32,
    /// True if the layout is for `vkCmdPushDescriptorSet`, not for sets.
    pub push: bool,
}

/// One binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The number of the binding.
    pub number: u32,
    /// The type of the descriptors that it holds.
    pub ty: venus::DescriptorType,
    /// The number of descriptors; for an inline uniform block, its bytes.
    pub count: u32,
    /// Stages that see the binding.
    pub stages: u32,
    /// True if the samplers of the binding are part of the layout.
    pub immutable_samplers: bool,
    /// `VkDescriptorBindingFlags`.
    pub flags: u32,
}

impl SetFacts {
    /// Returns the place of the binding with this number among the bindings. Most layouts number them from 0 on.
    #[inline]
    pub fn place(&self, number: u32) -> Option<usize> {
        match self.bindings.get(number as usize) {
            Some(binding) if binding.number == number => Some(number as usize),
            _ => self.bindings.binary_search_by_key(&number, |binding| binding.number).ok(),
        }
    }
}

impl Binding {
    /// The number of descriptors that the binding has in a set whose variable count is `variable_count`.
    pub fn room(&self, variable_count: u32) -> u32 {
        if self.is_variable() { variable_count } else { self.count }
    }

    /// Returns whether the count is chosen for each set, up to the layout's.
    pub fn is_variable(&self) -> bool {
        self.flags & DescriptorBindingFlags::VARIABLE_DESCRIPTOR_COUNT.0 != 0
    }
}

/// A layout of pipelines.
#[derive(Debug)]
pub struct PipelineLayout {
    /// Layouts of the sets; none for a set that a pipeline library leaves open.
    pub sets: Vec<Option<Arc<SetLayout>>>,
    /// The host's layout.
    pub host: HostLayout,
}

impl State for SetLayout {}

impl Kind for venus::DescriptorSetLayout {
    type State = SetLayout;
}

impl State for PipelineLayout {}

impl Kind for venus::PipelineLayout {
    type State = PipelineLayout;
}
