//! Shares out the memory of GPUs among VMs that are promised more than exists: passes the ledger's orders on to device processes.

use super::super::ledger::Order;
use super::super::run::Broker;
use crate::ipc::{FromBroker, RoomOrder, RoomState};
use sched::{Nanos, nanos};

impl Broker {
    /// Tells a device process that is ready how much it may hold by the ledger, if the file bounds the memory of all VMs. A successor, which goes on
    /// with the contexts, may hold as much as the VM could before.
    pub(super) fn room_begins(&mut self, index: usize) {
        let reserved = self.vms[index].settings.reserved_memory;
        let gpus = self.rooms_of(index);
        if gpus.is_empty() {
            return;
        }
        let order = self.ledger.begins(index, reserved, gpus);
        if self.ledger.is_over_reserved(index) {
            log::warn!(
                vm = self.vms[index].name();
                "the VMs on a GPU of this VM together reserve more memory than gpu-memory, so they cannot all have their reserved-memory at once; reserve less"
            );
        }
        self.order(index, order);
    }

    /// Updates the ledger after a VM may have come to one of its GPUs or left it.
    pub(super) fn room_moves(&mut self, index: usize) {
        self.ledger.uses(index, self.rooms_of(index));
        if self.settings.room.gpu_memory.is_some() {
            // The VM may have to be told the new amount of memory.
            self.next_room = Some(0);
        }
    }

    /// The GPUs that a VM uses or that new contexts come to, and the bytes that VMs may hold of each; none if VMs may hold any amount.
    fn rooms_of(&self, index: usize) -> Vec<(usize, u64)> {
        let Some(amount) = self.settings.room.gpu_memory else { return Vec::new() };
        let vm = &self.vms[index];
        let is_placed = |at: usize| vm.placement.0.iter().any(|gpu| usize::from(*gpu) == at);
        let used = vm.gpus.iter().enumerate().filter(|(at, on)| on.contexts > 0 || is_placed(*at));
        let most = |gpu: usize| amount.of(self.gpus[gpu].memory).min(self.gpus[gpu].memory);
        used.map(|(_, on)| (on.gpu, most(on.gpu))).collect()
    }

    /// Takes in the memory that a VM reports to hold and to want.
    pub(super) fn room_told(&mut self, index: usize, state: RoomState, now: Nanos) {
        self.ledger.set_weight(index, self.vms[index].share.weight);
        self.ledger.hears(index, state, now);
        self.room_due(now);
    }

    /// Tells VMs how much they may hold now.
    pub(in crate::broker) fn room_due(&mut self, now: Nanos) {
        for (index, order) in self.ledger.decide(nanos(self.settings.room.memory_wait), now) {
            if self.vms.get(index).is_some() {
                self.order(index, order);
            }
        }
        self.next_room = self.ledger.next_look(now);
    }

    fn order(&mut self, index: usize, Order { number, most, forced, total }: Order) {
        let wait_ms = u64::try_from(self.settings.room.memory_wait.as_millis()).unwrap_or(u64::MAX);
        self.tell(index, FromBroker::Room(RoomOrder { number, most, forced, total, wait_ms }));
    }
}
