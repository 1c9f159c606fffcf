//! The resolver: what it makes of the mini registry, and what it refuses.

mod mini;

use codegen::Inputs;
use codegen::ir::*;

fn protocol() -> Protocol {
    mini::inputs().resolve().expect("the mini registry resolves")
}

fn refusal(damage: impl Fn(&mut Inputs)) -> String {
    let mut inputs = mini::inputs();
    damage(&mut inputs);
    format!("{:#}", inputs.resolve().expect_err("refused"))
}

/// The registry with one text replaced, which must occur.
fn refusal_of_xml(from: &str, to: &str) -> String {
    refusal(|inputs| {
        assert!(inputs.registries[0].contains(from), "{from}");
        inputs.registries[0] = inputs.registries[0].replace(from, to);
    })
}

fn member<'p>(protocol: &'p Protocol, owner: &str, name: &str) -> &'p Member {
    protocol.structs[owner].members.iter().find(|m| m.vk == name).expect("member exists")
}

#[test]
fn only_selected_structs_enter_chains() {
    let protocol = protocol();
    assert_eq!(protocol.structs["VkKettleCreateInfo"].extended_by, ["VkKettleSteamInfoKHR"]);
    assert!(!protocol.structs.contains_key("VkKettleSecretInfoEXT"));
    let values: Vec<&str> = protocol.flags["VkKettleFlags"].values.iter().map(|v| v.rust.as_str()).collect();
    assert_eq!(values, ["COPPER", "ANY_LID", "WHISTLE_KHR"]);
}

#[test]
fn aliases_end_at_one_name() {
    let protocol = protocol();
    let command = &protocol.commands["vkGetKettleProperties"];
    assert_eq!(
        (command.number, &command.names.aliases[..]),
        (4, &["vkGetKettlePropertiesKHR".to_owned()][..])
    );
    assert_eq!(protocol.structs["VkKettleProperties"].names.aliases, ["VkKettlePropertiesKHR"]);
    assert_eq!(
        member(&protocol, "VkKettleSteamInfoKHR", "steam").ty,
        Type::Flags("VkSteamFlags2".to_owned())
    );
}

#[test]
fn lengths_precede_their_arrays_on_the_wire() {
    let protocol = protocol();
    let members = &protocol.structs["VkKettleCreateInfo"].members;
    let at = |name: &str| members.iter().position(|m| m.vk == name).expect("member exists");
    assert_eq!(at("codeSize") + 1, at("pCode"));
    assert!(members[at("codeSize")].api_index > members[at("pCode")].api_index);
}

#[test]
fn length_expressions_are_understood() {
    let protocol = protocol();
    let shape = |name: &str| member(&protocol, "VkKettleCreateInfo", name).shape.clone();
    let of = |name: &str| Box::new(Len::Member(name.to_owned()));
    assert_eq!(shape("pCode"), Shape::Array(Len::DivExact(of("code_size"), 4)));
    assert_eq!(shape("pCupMask"), Shape::Array(Len::DivCeil(of("cups"), 32)));
    assert_eq!(shape("ppTeas"), Shape::Strings(*of("tea_count")));
    assert_eq!(shape("pData"), Shape::Blob(*of("data_size")));
}

#[test]
fn partial_encoding_keeps_handles_lengths_and_structs() {
    let protocol = protocol();
    let partial = |name: &str| member(&protocol, "VkKettleProperties", name).partial;
    let found = ["name", "sizes", "twin", "teaCount", "pTeas"].map(partial);
    let expected = [Partial::Absent, Partial::Nested, Partial::Full, Partial::Full, Partial::CountOnly];
    assert_eq!(found, expected);
}

#[test]
fn directions_follow_const_and_use_as_length() {
    let protocol = protocol();
    let directions = |name: &str| -> Vec<Direction> {
        protocol.commands[name].params.iter().map(|p| p.direction).collect()
    };
    assert_eq!(directions("vkCreateKettle"), [Direction::In, Direction::In, Direction::In, Direction::Out]);
    assert_eq!(directions("vkGetKettleProperties"), [Direction::In, Direction::InOut, Direction::Out]);
    let properties = &protocol.structs["VkKettleProperties"];
    assert_eq!((properties.input, properties.output), (false, true));
}

#[test]
fn conditions_make_pointers_optional() {
    let protocol = protocol();
    let owners = member(&protocol, "VkKettleCreateInfo", "pOwners");
    let member = "sharing_mode".to_owned();
    assert_eq!(owners.condition, Some(Condition::Equals { member, constant: "CONCURRENT".to_owned() }));
    assert!(owners.optional);
}

#[test]
fn selected_names_must_exist() {
    let unknown = refusal(|i| i.allowlist = i.allowlist.replace("VK_KHR_steam", "VK_KHR_smoke"));
    assert!(unknown.contains("VK_KHR_smoke"), "{unknown}");
    let unknown = refusal(|i| i.commands = i.commands.replace("vkCreateKettle = 3", ""));
    assert!(unknown.contains("vkCreateKettle: no command number"), "{unknown}");
    let unknown = refusal(|i| i.overrides = i.overrides.replace("pOwners", "pLodgers"));
    assert!(unknown.contains("VkKettleCreateInfo.pLodgers"), "{unknown}");
    let unknown = refusal(|i| i.execution.push_str("[by_hand.kettle]\nvkSpillKettle = \"test\"\n"));
    assert!(unknown.contains("selects no vkSpillKettle"), "{unknown}");
}

#[test]
fn commands_know_what_of_them_is_written_by_hand() {
    let mut inputs = mini::inputs();
    inputs.execution.push_str("[by_hand.kettle]\nvkCreateKettle = \"test\"\n[checked.\"validity::kettle\"]\nvkBoilMESA = \"test\"\n");
    let protocol = inputs.resolve().expect("resolves");
    let of = |name: &str| protocol.commands[name].execution.clone();
    assert_eq!(of("vkCreateKettle").by_hand.as_deref(), Some("kettle"));
    assert_eq!(of("vkBoilMESA").checked.as_deref(), Some("validity::kettle"));
    assert!(!of("vkBoilMESA").is_recorded);
}

#[test]
fn a_command_that_is_not_only_recorded_has_one_class_in_a_journal() {
    let of = |name: &str| mini::inputs().resolve().expect("resolves").commands[name].replay;
    assert_eq!(of("vkCreateKettle"), Replay::Again);
    assert_eq!(of("vkGetKettleProperties"), Replay::Nothing);
    assert_eq!(of("vkBoilMESA"), Replay::Breaks);
    let forgotten = refusal(|i| i.replay = i.replay.replace(r#"["vkBoilMESA"]"#, "[]"));
    assert!(forgotten.contains("vkBoilMESA has no row"), "{forgotten}");
    let row = "[[submits]]\nreason = \"test\"\ncommands = [\"vkSpillKettle\"]\n";
    let unknown = refusal(|i| i.replay.push_str(row));
    assert!(unknown.contains("selects no vkSpillKettle"), "{unknown}");
    let twice = refusal(|i| i.replay.push_str(&row.replace("vkSpillKettle", "vkBoilMESA")));
    assert!(twice.contains("vkBoilMESA has two rows"), "{twice}");
}

#[test]
fn a_command_has_one_number() {
    let doubled = refusal(|i| i.commands.push_str("vkGetKettleProperties = 9\n"));
    assert!(doubled.contains("two numbers"), "{doubled}");
}

#[test]
fn members_without_a_wire_form_are_refused() {
    let steam = "<member><type>VkSteamFlags2KHR</type> <name>steam</name></member>";
    for (member, complaint) in [
        ("<member><type>uint32_t</type> <name>bits</name>:24</member>", "bit fields"),
        ("<member><type>PFN_vkAlloc</type> <name>pfn</name></member>", "PFN_vkAlloc has no wire form"),
        ("<member len=\"reserved\">const <type>uint16_t</type>* <name>p</name></member>", "16-bit"),
        ("<member>const <type>char</type>* <name>p</name></member>", "terminator"),
        (
            "<member len=\"nothing\">const <type>uint32_t</type>* <name>p</name></member>",
            "no member \"nothing\"",
        ),
    ] {
        let refused = refusal_of_xml(steam, member);
        assert!(refused.contains("VkKettleSteamInfoKHR") && refused.contains(complaint), "{refused}");
    }
}

#[test]
fn types_that_contain_themselves_are_refused() {
    let steam = "<member><type>VkSteamFlags2KHR</type> <name>steam</name></member>";
    let inner =
        "<member optional=\"true\">const <type>VkKettleCreateInfo</type>* <name>pInner</name></member>";
    let refused = refusal_of_xml(steam, inner);
    assert!(refused.contains("contains itself"), "{refused}");
}

#[test]
fn excluded_structs_stay_out_of_chains() {
    let mut inputs = mini::inputs();
    inputs.overrides.push_str("\n[[excluded]]\nstruct = \"VkKettleSteamInfoKHR\"\nreason = \"test\"\n");
    let protocol = inputs.resolve().expect("resolves");
    assert!(protocol.structs["VkKettleCreateInfo"].extended_by.is_empty());
}
