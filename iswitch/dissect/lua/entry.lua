-- The way in: by port and ToS, or by ToS and what the packet looks like

local get = {
    ds = Field.new("ip.dsfield"), tos = Field.new("ip.tos"), icmp = Field.new("icmp.type"),
    mf = Field.new("ip.flags.mf"), offset = Field.new("ip.frag_offset"),
    number = Field.new("frame.number"),  -- in every tree
}

local function innermost(field)
    local found = { field() }
    return #found > 0 and found[#found].value or nil
end

local function ends_of(pinfo)
    return tostring(pinfo.src) .. ":" .. pinfo.src_port, tostring(pinfo.dst) .. ":" .. pinfo.dst_port
end

local function frame_of(pinfo, source, destination)
    local frame = frames[pinfo.number]
    if not frame then
        table.insert(order, pinfo.number)
        frame = { known = known_of(guessed, source, destination) }
        frames[pinfo.number] = frame
    end
    return frame
end

-- A look at a frame whose ToS can be read: if it follows on those before, what they tell is sure.
local function follow(pinfo)
    local source, destination = ends_of(pinfo)
    local frame = frame_of(pinfo, source, destination)
    if order[following] == pinfo.number then
        following = following + 1
        frame.sure, frame.known = true, known_of(sure, source, destination)
    end
end

-- What was known when a packet came; where that was not all, what is known now, from a later look.
local function known_at(frame, source, destination)
    local known = frame.known
    if known and known.shape then return known end
    return known_of(guessed, source, destination) or known
end

-- Where packets are looked at twice, Wireshark makes no tree the first time, and Lua can read the
-- ToS in a tree only. Then take for control what is a sound control packet, so that it is known
-- from the first look what answers what; nothing is shown of it. Data may read so, too: when all are
-- looked at again, one after another, what is known of each is what the ToS tells of those before.
local function foresee(tvb, pinfo)
    local source, destination = ends_of(pinfo)
    local frame = frame_of(pinfo, source, destination)
    if tvb:captured_len() < SEG_SIZE or tvb:captured_len() < tvb:reported_len() then return end
    local v, _, _, fault = parse_control(tvb)
    if not fault then note(frame, source, destination, v, pinfo) end
end

local function kind_of(tvb, pinfo)  -- nil: no iSwitch traffic, or there is no tree
    if not get.number() then
        foresee(tvb, pinfo)
        return nil
    end
    follow(pinfo)
    local tos = innermost(get.ds) or innermost(get.tos)
    if not tos then return nil end
    if innermost(get.mf) or innermost(get.offset) ~= 0 then return nil end
    tos = tos - tos % (256 - TOS_MASK)
    return tos == TOS_CONTROL and "control" or tos == TOS_DATA and "data" or nil
end

local function dissect(tvb, pinfo, tree, kind)
    local source, destination = ends_of(pinfo)
    local frame = frame_of(pinfo, source, destination)
    pinfo.cols.protocol = NAME
    if kind == "control" then
        dissect_control(tvb, pinfo, tree, frame, source, destination, get.icmp() ~= nil)
    else
        dissect_data(tvb, pinfo, tree, known_at(frame, source, destination))
    end
    return tvb:captured_len()
end

function iswitch.dissector(tvb, pinfo, tree)
    local kind = kind_of(tvb, pinfo)
    -- Without a tree, what is not taken may look like DNS: Wireshark keeps that for the conversation.
    if not get.number() then return tvb:captured_len() end
    if not kind or tvb:captured_len() == 0 then return 0 end
    return dissect(tvb, pinfo, tree, kind)
end

iswitch:register_heuristic("udp", function(tvb, pinfo, tree)
    local kind = kind_of(tvb, pinfo)
    if not kind or tvb:captured_len() < SEG_SIZE then return false end
    if kind == "control" then
        local _, _, _, fault = parse_control(tvb)
        if fault then return false end
    else
        local source, destination = ends_of(pinfo)
        if not known_at(frame_of(pinfo, source, destination), source, destination) then
            return false
        end
    end
    dissect(tvb, pinfo, tree, kind)
    return true
end)

local udp, registered = DissectorTable.get("udp.port"), tostring(PORT)
udp:add(registered, iswitch)

function iswitch.prefs_changed()
    if tostring(iswitch.prefs.ports) == registered then return end
    udp:remove(registered, iswitch)
    registered = tostring(iswitch.prefs.ports)
    if registered ~= "" then udp:add(registered, iswitch) end
end
