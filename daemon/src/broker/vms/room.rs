//! Shares the memory of GPUs out among VMs that are promised more than there is: passes the ledger's orders on to device processes.

use super::super::ledger::Order;
use super::super::run::Broker;
use crate::ipc::{FromBroker, RoomOrder, RoomState};
use sched::Nanos;

impl Broker {
    /// A VM's device process is ready: it may hold the amount of the ledger, if the file says how much VMs may hold together. A successor, which goes on
    /// with the contexts, may hold what the VM could hold before.
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

    /// A VM may have come to one of its GPUs or left it.
    pub(super) fn room_moves(&mut self, index: usize) {
        self.ledger.uses(index, self.rooms_of(index));
        if self.settings.room.gpu_memory.is_some() {
            // The VM may have to hear how much memory there is now.
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

    /// A VM says how much memory it holds and wants.
    pub(super) fn room_told(&mut self, index: usize, state: RoomState, now: Nanos) {
        self.ledger.set_weight(index, self.vms[index].share.weight);
        self.ledger.hears(index, state, now);
        self.room_due(now);
    }

    /// Tells VMs how much they may hold now.
    pub(in crate::broker) fn room_due(&mut self, now: Nanos) {
        let patience = u64::try_from(self.settings.room.memory_wait.as_nanos()).unwrap_or(Nanos::MAX);
        for (index, order) in self.ledger.decide(patience, now) {
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
