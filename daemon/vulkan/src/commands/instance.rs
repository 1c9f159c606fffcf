//! `VkInstance`, and which physical devices a guest sees: those chosen at start-up, in that order.

use crate::context::cause::DriverError;
use crate::context::error::{ContextLost, Fault};
use crate::driver::instance::Instance;
use crate::execution::call::Call;
use crate::execution::context::Context;
use crate::objects::object::{Handle as _, Object, StateOf};
use crate::shape::physical_device;
use ash::vk;
use protocol::venus::generated as venus;
use std::ffi::CStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// `vkEnumerateInstanceVersion`.
pub(crate) fn enumerate_instance_version<'a>(
    call: &Call<'a>,
    _: &venus::EnumerateInstanceVersion<'a>,
) -> Result<venus::EnumerateInstanceVersionReply<'a>, Fault> {
    let version = call.context.env.api_version;
    Ok(venus::EnumerateInstanceVersionReply {
        result: venus::VkResult::SUCCESS,
        p_api_version: Some(call.arena.value(version)?),
    })
}

/// `vkEnumerateInstanceExtensionProperties`: none.
pub(crate) fn enumerate_instance_extension_properties<'a>(
    call: &Call<'a>,
    c: &venus::EnumerateInstanceExtensionProperties<'a>,
) -> Result<venus::EnumerateInstanceExtensionPropertiesReply<'a>, Fault> {
    Ok(venus::EnumerateInstanceExtensionPropertiesReply {
        result: venus::VkResult::SUCCESS,
        p_property_count: Some(call.arena.value(0)?),
        p_properties: c.p_properties.map(|_| &[][..]),
    })
}

/// `vkEnumerateInstanceLayerProperties`: none.
pub(crate) fn enumerate_instance_layer_properties<'a>(
    call: &Call<'a>,
    c: &venus::EnumerateInstanceLayerProperties<'a>,
) -> Result<venus::EnumerateInstanceLayerPropertiesReply<'a>, Fault> {
    Ok(venus::EnumerateInstanceLayerPropertiesReply {
        result: venus::VkResult::SUCCESS,
        p_property_count: Some(call.arena.value(0)?),
        p_properties: c.p_properties.map(|_| &[][..]),
    })
}

fn no_driver(refused: vk::Result) -> ContextLost {
    DriverError::fails("the driver refuses an instance", refused).into()
}

/// The description of a guest's program that the host's driver gets: drivers know some programs by name and serve them
/// better than others. A name that is longer than [`NAME_MAX`] or not UTF-8 is left out.
fn program<'a>(guest: Option<&venus::ApplicationInfo<'a>>) -> vk::ApplicationInfo<'a> {
    let Some(guest) = guest else { return vk::ApplicationInfo::default() };
    let name = |name: Option<&'a CStr>| {
        let name = name.filter(|name| name.count_bytes() <= NAME_MAX && name.to_str().is_ok());
        name.map_or(std::ptr::null(), CStr::as_ptr)
    };
    vk::ApplicationInfo {
        p_application_name: name(guest.p_application_name),
        application_version: guest.application_version,
        p_engine_name: name(guest.p_engine_name),
        engine_version: guest.engine_version,
        ..Default::default()
    }
}

/// The most bytes of a program's name. The names that drivers look for are far shorter.
const NAME_MAX: usize = 255;

/// An instance for a program of the guest. It is not made before there is a program: NVIDIA's driver goes by the name of a process's first program.
fn instance(context: &Context, program: vk::ApplicationInfo<'_>) -> Result<Instance, ContextLost> {
    context.coming_up.store(true, Ordering::Relaxed);
    let instance = Instance::new(context.env.entry.clone(), program).map_err(no_driver);
    context.coming_up.store(false, Ordering::Relaxed);
    instance
}

/// `vkCreateInstance`: the guest's layers and extensions do not matter to the host.
pub(crate) fn create_instance<'a>(
    call: &Call<'a>,
    c: &venus::CreateInstance<'a>,
) -> Result<venus::CreateInstanceReply<'a>, Fault> {
    let Some(id) = c.p_instance else { return Err(Fault::without("an id")) };
    let application = c.p_create_info.and_then(|info| info.p_application_info);
    let instance = Arc::new(instance(call.context, program(application))?);
    let object =
        Object::new::<venus::Instance>(instance.raw(), None, StateOf::shared(instance), call.encoding());
    call.context.objects.insert(id.id(), object).map_err(ContextLost::from)?;
    Ok(venus::CreateInstanceReply { result: venus::VkResult::SUCCESS, p_instance: c.p_instance })
}

/// `vkDestroyInstance`: everything else of the context goes first. A guest that waits gets the answer when all memory that it has freed is
/// unmapped, which takes seconds with hundreds of mappings: QEMU does not survive a guest that restarts before that, right after its program.
pub(crate) fn destroy_instance<'a>(
    call: &Call<'a>,
    c: &venus::DestroyInstance,
) -> Result<venus::DestroyInstanceReply, Fault> {
    if call.heard {
        call.context.env.allowance.caught_up(call.cancel)?;
    }
    let instance = call.context.objects.remove(c.instance)?;
    call.context.destroy_objects();
    drop(instance);
    Ok(venus::DestroyInstanceReply {})
}

/// `vkEnumeratePhysicalDevices`.
pub(crate) fn enumerate_physical_devices<'a>(
    call: &Call<'a>,
    c: &venus::EnumeratePhysicalDevices<'a>,
) -> Result<venus::EnumeratePhysicalDevicesReply<'a>, Fault> {
    let instance = call.state(c.instance)?;
    let all = call.context.env.gpus.len();
    let ids = c.p_physical_devices.map(|ids| &ids[..ids.len().min(all)]);
    for (index, id) in ids.unwrap_or(&[]).iter().enumerate() {
        bind_physical_device(call, &instance, index, *id)?;
    }
    let count = ids.map_or(all, <[_]>::len);
    let result = if count < all { venus::VkResult::INCOMPLETE } else { venus::VkResult::SUCCESS };
    Ok(venus::EnumeratePhysicalDevicesReply {
        result,
        p_physical_device_count: Some(call.arena.value(count as u32)?),
        p_physical_devices: ids,
    })
}

/// Lets a guest name the GPU at `index` by `id`. The guest may ask again, and then for more GPUs.
fn bind_physical_device(
    call: &Call<'_>,
    instance: &Arc<Instance>,
    index: usize,
    id: venus::PhysicalDevice,
) -> Result<(), Fault> {
    let mut bound = instance.bound.lock();
    match bound.get(index) {
        Some(known) if *known == id && id.id() != 0 => return Ok(()),
        Some(_) => return Err(Fault::rule("a physical device is given a second id")),
        None => {}
    }
    let physical =
        physical_device::find(instance, index, &call.context.env.gpus[index], &call.context.env.limits)?;
    let (raw, state) = (physical.raw(), StateOf::of(physical));
    let object = Object::new::<venus::PhysicalDevice>(raw, None, state, call.encoding());
    call.context.objects.insert(id.id(), object).map_err(ContextLost::from)?;
    bound.push(id);
    Ok(())
}

/// `vkEnumeratePhysicalDeviceGroups`: each device is a group of its own.
pub(crate) fn enumerate_physical_device_groups<'a>(
    call: &Call<'a>,
    c: &venus::EnumeratePhysicalDeviceGroups<'a>,
) -> Result<venus::EnumeratePhysicalDeviceGroupsReply<'a>, Fault> {
    let instance = call.state(c.instance)?;
    let all = call.context.env.gpus.len();
    let bound = instance.bound.lock();
    let groups = match c.p_physical_device_group_properties {
        None => None,
        Some(groups) => {
            let groups = groups.iter().take(all).enumerate().map(|(index, group)| {
                let mut group = *group;
                group.physical_device_count = 1;
                group.physical_devices = [venus::PhysicalDevice(0); 32];
                group.physical_devices[0] = bound.get(index).copied().unwrap_or(venus::PhysicalDevice(0));
                group.subset_allocation = 0;
                group
            });
            Some(&call.arena.slice_copy(&groups.collect::<Vec<_>>())?[..])
        }
    };
    let count = groups.map_or(all, <[_]>::len);
    let result = if count < all { venus::VkResult::INCOMPLETE } else { venus::VkResult::SUCCESS };
    Ok(venus::EnumeratePhysicalDeviceGroupsReply {
        result,
        p_physical_device_group_count: Some(call.arena.value(count as u32)?),
        p_physical_device_group_properties: groups,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::null::{self, NoResources};
    use crate::{Cancel, Gate, Renderer};
    use config::Passage;
    use protocol::cursor::{Arena, Writer};
    use shm::{Doorbell, GateSide, grant_page};
    use std::ffi::CString;
    use venus::{Command, CreateDevice, CreateInstance, EnumeratePhysicalDevices, PhysicalDevice as Id};

    /// A context on both GPUs of the null driver.
    struct World {
        renderer: Renderer,
        _exclusive: null::Exclusive,
    }

    const INSTANCE: venus::Instance = venus::Instance(1);
    const IDS: [Id; 3] = [Id(2), Id(3), Id(4)];

    impl World {
        fn new() -> Self {
            // With this seed the first creations succeed.
            let exclusive = null::begin(0x9e37_79b9_7f4a_7c15);
            let renderer = null::renderer(Arc::new(NoResources));
            let world = Self { renderer, _exclusive: exclusive };
            let create = CreateInstance { p_create_info: None, p_instance: Some(&INSTANCE) };
            world.execute(&Command::CreateInstance(create)).unwrap();
            world
        }

        /// The words of the reply behind the command's number.
        fn execute(&self, command: &Command<'_>) -> Result<Vec<u32>, ContextLost> {
            let (arena, cancel, mut reply) = (Arena::new(1 << 16), Cancel::default(), vec![0; 4096]);
            let mut writer = Writer::window(&mut reply);
            self.renderer.execute(command, &[], &arena, &cancel, Some(&mut writer))?;
            let words =
                reply.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            Ok(words.skip(1).collect())
        }

        /// Result and count of `vkEnumeratePhysicalDevices` with room for these.
        fn enumerate(&self, ids: Option<&[Id]>) -> Result<(i32, u32), ContextLost> {
            let reply = self.execute(&Command::EnumeratePhysicalDevices(EnumeratePhysicalDevices {
                instance: INSTANCE,
                p_physical_device_count: Some(&ids.map_or(0, |ids| ids.len() as u32)),
                p_physical_devices: ids,
            }))?;
            // The words between the result and the count say that there is a count.
            Ok((reply[0] as i32, reply[3]))
        }

        fn uuid(&self, id: Id) -> [u8; 16] {
            self.renderer.context().objects.read().get(id).unwrap().state::<Id>().unwrap().gpu.uuid
        }

        /// Result of `vkCreateDevice` of a physical device, with this group if it is not empty.
        fn create_device(&self, physical_device: Id, group: &[Id], device: venus::Device) -> i32 {
            let group = venus::DeviceGroupDeviceCreateInfo {
                physical_device_count: group.len() as u32,
                p_physical_devices: Some(group),
                ..Default::default()
            };
            let chain = [venus::ChainStruct::DeviceGroupDeviceCreateInfo(&group)];
            let queue = venus::DeviceQueueCreateInfo {
                queue_count: 1,
                p_queue_priorities: Some(&[1.0]),
                ..Default::default()
            };
            let info = venus::DeviceCreateInfo {
                p_next: &chain,
                queue_create_info_count: 1,
                p_queue_create_infos: Some(std::slice::from_ref(&queue)),
                ..Default::default()
            };
            let (p_create_info, p_device) = (Some(&info), Some(&device));
            let create = CreateDevice { physical_device, p_create_info, p_device };
            self.execute(&Command::CreateDevice(create)).unwrap()[0] as i32
        }
    }

    const SUCCESS: i32 = venus::VkResult::SUCCESS.0;
    const INCOMPLETE: i32 = venus::VkResult::INCOMPLETE.0;

    #[test]
    fn gpus_are_bound_in_the_order_of_the_choice_as_far_as_they_are_asked_for() {
        let world = World::new();
        assert_eq!(world.enumerate(None).unwrap(), (SUCCESS, 2));
        assert_eq!(world.enumerate(Some(&[])).unwrap(), (INCOMPLETE, 0));
        assert_eq!(world.enumerate(Some(&IDS[..1])).unwrap(), (INCOMPLETE, 1));
        assert!(world.renderer.context().objects.read().get(IDS[1]).is_err(), "it was not asked for");
        assert_eq!(world.enumerate(Some(&IDS)).unwrap(), (SUCCESS, 2));
        assert_eq!(world.enumerate(Some(&IDS[..2])).unwrap(), (SUCCESS, 2), "the same again");
        assert!(world.renderer.context().objects.read().get(IDS[2]).is_err(), "there are two");
        let chosen: Vec<_> = world.renderer.context().env.gpus.iter().map(|gpu| gpu.uuid).collect();
        assert_eq!([world.uuid(IDS[0]), world.uuid(IDS[1])], chosen[..]);
        assert_ne!(chosen[0], chosen[1]);
    }

    #[test]
    fn a_gpu_has_one_name_and_a_name_one_gpu() {
        for wrong in [[IDS[1], IDS[0]], [IDS[0], IDS[0]], [IDS[0], Id(0)], [IDS[0], Id(1)]] {
            let world = World::new();
            world.enumerate(Some(&IDS[..1])).unwrap();
            assert!(world.enumerate(Some(&wrong)).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_device_is_of_one_gpu_and_passes_the_gate_of_that() {
        let mut world = World::new();
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let side = || GateSide::open(grant_page().unwrap()).unwrap();
        let gate = |_| Gate::new(side(), Arc::clone(&doorbell), Passage::ByGrant);
        world.renderer = world.renderer.gated((0..2).map(gate).collect());
        world.enumerate(Some(&IDS[..2])).unwrap();
        let (own, none) = ([IDS[1]], []);
        for (number, group) in [&[IDS[0], IDS[1]][..], &[IDS[1], IDS[0]], &IDS[..1]].into_iter().enumerate() {
            let refused = world.create_device(IDS[1], group, venus::Device(10 + number as u64));
            assert_eq!(refused, venus::VkResult::ERROR_INITIALIZATION_FAILED.0, "{group:?}");
        }
        let devices = [(IDS[1], &own[..]), (IDS[0], &none)].into_iter().zip(20..);
        for ((physical, group), number) in devices {
            assert_eq!(world.create_device(physical, group, venus::Device(number)), SUCCESS);
        }
        let objects = world.renderer.context().objects.read();
        let gate = |number| {
            let device = objects.get(venus::Device(number)).unwrap();
            Arc::clone(device.state::<venus::Device>().unwrap().gate.as_ref().unwrap())
        };
        assert!(Arc::ptr_eq(&gate(20), &world.renderer.context().env.gates[1]));
        assert!(Arc::ptr_eq(&gate(21), &world.renderer.context().env.gates[0]));
    }

    #[test]
    fn a_driver_that_refuses_newer_instances_is_asked_for_an_older_one() {
        for newest in
            [vk::make_api_version(0, 1, 4, 0), vk::make_api_version(0, 1, 3, 250), vk::API_VERSION_1_1]
        {
            let _exclusive = null::begin_reliable();
            null::refuse_newer_instances(newest);
            let world = World { renderer: null::renderer(Arc::new(NoResources)), _exclusive };
            let create = CreateInstance { p_create_info: None, p_instance: Some(&INSTANCE) };
            let reply = world.execute(&Command::CreateInstance(create)).unwrap();
            assert_eq!(reply[0] as i32, SUCCESS, "{newest:#x}");
            assert_eq!(world.enumerate(Some(&IDS[..2])).unwrap(), (SUCCESS, 2));
        }
        let _exclusive = null::begin_reliable();
        null::refuse_newer_instances(0);
        let world = World { renderer: null::renderer(Arc::new(NoResources)), _exclusive };
        let create = CreateInstance { p_create_info: None, p_instance: Some(&INSTANCE) };
        assert!(world.execute(&Command::CreateInstance(create)).is_err(), "it takes none");
    }

    /// The names of a program and its engine that the driver is told, in the only instance that it makes.
    fn told(program: Option<&venus::ApplicationInfo<'_>>) -> [Option<CString>; 2] {
        let _exclusive = null::begin_reliable();
        let (before, _) = null::programs();
        let world = World { renderer: null::renderer(Arc::new(NoResources)), _exclusive };
        let info = venus::InstanceCreateInfo { p_application_info: program, ..Default::default() };
        let create = CreateInstance { p_create_info: Some(&info), p_instance: Some(&INSTANCE) };
        world.execute(&Command::CreateInstance(create)).unwrap();
        let (made, program) = null::programs();
        assert_eq!(made - before, 1, "drivers go by the first");
        program
    }

    #[test]
    fn the_driver_is_told_the_names_of_the_guests_program_once() {
        assert_eq!(told(None), [None, None]);
        let program = |name, engine| venus::ApplicationInfo {
            p_application_name: name,
            p_engine_name: engine,
            ..Default::default()
        };
        let names = [Some(c"a program"), Some(c"an engine")];
        assert_eq!(told(Some(&program(names[0], names[1]))), names.map(|name| name.map(CStr::to_owned)));
        assert_eq!(told(Some(&program(None, names[1])))[0], None);
        let longest = CString::new(vec![b'a'; NAME_MAX]).unwrap();
        let too_long = CString::new(vec![b'a'; NAME_MAX + 1]).unwrap();
        let wrong = program(Some(&too_long), Some(c"\xff"));
        assert_eq!(told(Some(&wrong)), [None, None]);
        assert_eq!(told(Some(&program(Some(&longest), None)))[0], Some(longest.clone()));
    }
}
