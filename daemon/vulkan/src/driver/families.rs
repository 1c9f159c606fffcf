//! Queue families as a guest sees them: which families, in which order, with which abilities.
//!
//! Programs take the first family that computes, or look for one that computes and does not draw, because such queues compute faster
//! (on an NVIDIA data-centre GPU by 6 us for each submission, and some kernels by a quarter). A guest that does not see whether a family
//! draws could not choose. So the family that such a guest finds first is one that does not draw.

use ash::vk;
use config::Queues;

/// Queues a guest can bind: `ring_idx` 1 to 63.
const BINDABLE_QUEUES: u32 = 63;

/// The order of a guest's families: the host's order, except for two that have changed places. It is its own inverse.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FamilyOrder {
    changed: Option<(u32, u32)>,
}

impl FamilyOrder {
    /// Returns the host's number of a guest's family, or the reverse. A number that names no family stays as it is (`VK_QUEUE_FAMILY_IGNORED`).
    pub fn swap(self, family: u32) -> u32 {
        match self.changed {
            Some((one, other)) if family == one => other,
            Some((one, other)) if family == other => one,
            _ => family,
        }
    }

    /// Returns whether all numbers are the host's.
    pub fn is_host(self) -> bool {
        self.changed.is_none()
    }

    /// Returns the order of `families`, of which a guest sees some.
    fn of(families: &[vk::QueueFamilyProperties], queues: Queues) -> Self {
        if queues.say_that_they_draw() {
            return Self::default();
        }
        let first = |draws: bool| {
            let wanted = |family: &vk::QueueFamilyProperties| {
                let flags = family.queue_flags;
                flags.contains(vk::QueueFlags::COMPUTE) && flags.contains(vk::QueueFlags::GRAPHICS) == draws
            };
            families.iter().position(wanted).map(|at| at as u32)
        };
        let changed = first(true).zip(first(false)).filter(|(draws, plain)| draws < plain);
        Self { changed }
    }
}

/// The families that a guest sees.
pub(crate) struct Families {
    /// Each family as the guest sees it, in the guest's order.
    pub visible: Vec<vk::QueueFamilyProperties>,
    /// The same families in the same order, with the host's counts of queues and their abilities.
    pub hosts: Vec<vk::QueueFamilyProperties>,
    /// The order that says which of the host's families they are.
    pub order: FamilyOrder,
}

/// Returns the families that a guest sees of the host's: those in front of the first that can neither compute nor copy.
///
/// GRAPHICS is dropped unless guests are to see it; SPARSE_BINDING and PROTECTED because neither is served; video and optical flow because
/// they are not compute. If one queue is `kept` for a device's copies, a guest sees one queue less of each family with several queues.
pub(crate) fn visible(mut families: Vec<vk::QueueFamilyProperties>, queues: Queues, kept: bool) -> Families {
    let order = FamilyOrder::of(&families, queues);
    if let Some((one, other)) = order.changed {
        families.swap(one as usize, other as usize);
    }
    families.iter_mut().for_each(|family| family.queue_flags = with_copies(family.queue_flags));
    let mut hosts = families.clone();
    let mut left = BINDABLE_QUEUES;
    for family in &mut families {
        family.queue_flags = flags(family.queue_flags, queues);
        let kept = u32::from(kept && family.queue_count > 1);
        family.queue_count = (family.queue_count - kept).min(left);
        left -= family.queue_count;
    }
    let unusable =
        |family: &vk::QueueFamilyProperties| family.queue_flags.is_empty() || family.queue_count == 0;
    let usable = families.iter().position(unusable).unwrap_or(families.len());
    families.truncate(usable);
    hosts.truncate(usable);
    Families { visible: families, hosts, order }
}

/// Graphics and compute families can copy whether they say so or not.
fn with_copies(host: vk::QueueFlags) -> vk::QueueFlags {
    match host.intersects(vk::QueueFlags::COMPUTE | vk::QueueFlags::GRAPHICS) {
        true => host | vk::QueueFlags::TRANSFER,
        false => host,
    }
}

/// Returns those of the host's flags of a family that a guest sees.
fn flags(host: vk::QueueFlags, queues: Queues) -> vk::QueueFlags {
    let graphics = match queues.say_that_they_draw() {
        true => vk::QueueFlags::GRAPHICS,
        false => vk::QueueFlags::empty(),
    };
    host & (vk::QueueFlags::COMPUTE | vk::QueueFlags::TRANSFER | graphics)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vk::QueueFlags as Flags;

    const ALL: Flags = Flags::from_raw(0xf);
    const COMPUTES: Flags = Flags::from_raw(0xe);
    const COPIES: Flags = Flags::from_raw(0xc);
    const DECODES: Flags = Flags::VIDEO_DECODE_KHR;

    fn see(host: &[(Flags, u32)], queues: Queues) -> (Vec<(u32, u32)>, FamilyOrder) {
        let family = |&(queue_flags, queue_count): &(Flags, u32)| vk::QueueFamilyProperties {
            queue_flags,
            queue_count,
            ..Default::default()
        };
        let Families { visible: seen, order, .. } = visible(host.iter().map(family).collect(), queues, false);
        (seen.iter().map(|family| (family.queue_flags.as_raw(), family.queue_count)).collect(), order)
    }

    #[test]
    fn what_computes_first_does_not_draw() {
        let host = [(ALL, 16), (COPIES, 2), (COMPUTES, 8)];
        let (seen, order) = see(&host, Queues::Compute);
        assert_eq!(seen, [(6, 8), (4, 2), (6, 16)]);
        assert_eq!([0, 1, 2, 3, u32::MAX].map(|family| order.swap(family)), [2, 1, 0, 3, u32::MAX]);
        // A guest that sees which families draw can choose.
        for queues in [Queues::Nominal, Queues::All] {
            let (seen, order) = see(&host, queues);
            assert_eq!((seen, order.is_host()), (vec![(7, 16), (4, 2), (6, 8)], true));
        }
    }

    #[test]
    fn abilities_are_the_hosts_in_the_guests_order() {
        let family =
            |queue_flags| vk::QueueFamilyProperties { queue_flags, queue_count: 1, ..Default::default() };
        let host = [Flags::GRAPHICS | Flags::COMPUTE, COPIES, COMPUTES].map(family).to_vec();
        let Families { hosts, .. } = visible(host, Queues::Compute, false);
        let able: Vec<u32> = hosts.iter().map(|family| family.queue_flags.as_raw()).collect();
        assert_eq!(able, [COMPUTES.as_raw(), COPIES.as_raw(), 7]);
    }

    #[test]
    fn of_several_queues_one_is_kept_that_the_host_has_still() {
        let family = |(queue_flags, queue_count)| vk::QueueFamilyProperties {
            queue_flags,
            queue_count,
            ..Default::default()
        };
        let host = [(ALL, 16), (COPIES, 2), (COMPUTES, 1)].map(family).to_vec();
        let Families { visible, hosts, .. } = visible(host, Queues::All, true);
        let counts = |families: &[vk::QueueFamilyProperties]| {
            families.iter().map(|family| family.queue_count).collect::<Vec<_>>()
        };
        assert_eq!((counts(&visible), counts(&hosts)), (vec![15, 1, 1], vec![16, 2, 1]));
    }

    #[test]
    fn an_order_that_is_right_stays() {
        for host in [&[(ALL, 1)][..], &[(COMPUTES, 8), (ALL, 1)], &[(COPIES, 1), (COMPUTES, 1)]] {
            assert!(see(host, Queues::Compute).1.is_host());
        }
    }

    #[test]
    fn queues_end_where_no_more_can_be_bound_and_families_where_one_is_of_no_use() {
        assert_eq!(see(&[(ALL, 60), (COPIES, 9), (COPIES, 1)], Queues::Compute).0, [(6, 60), (4, 3)]);
        assert_eq!(see(&[(ALL, 1), (DECODES, 1), (COPIES, 1)], Queues::Compute).0, [(6, 1)]);
        // The family that does not draw is behind one of no use: it changes places all the same.
        let (seen, order) = see(&[(ALL, 1), (DECODES, 1), (COMPUTES, 4)], Queues::Compute);
        assert_eq!((seen, order.swap(0)), (vec![(6, 4)], 2));
    }
}
