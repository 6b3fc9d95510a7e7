-- The tables above are made of the project's wire formats; nothing below repeats an offset or a code.
-- docs/dissect.md says what there is to see and to filter by.

local iswitch = Proto("iswitch", "iSwitch")
local NAME, LINE, SHOWN = "iSwitch", 8, 4

-- Fields: those of the packets, by filter, and then what is found out

local f = {}

local function declare(layout)
    for _, field in ipairs(layout) do
        local filter, codes = "iswitch." .. field.filter, CODES[field.codes]
        if not f[field.filter] then
            local make = ({ ProtoField.uint8, ProtoField.uint16, [4] = ProtoField.uint32 })[field.size]
            local shown = field.codes == "flags" and base.HEX or base.DEC
            f[field.filter] = field.codes == "ipv4" and ProtoField.ipv4(filter, field.label)
                or (field.codes == "bitmap" or field.codes == "bytes")
                and ProtoField.bytes(filter, field.label)
                or make(filter, field.label, shown, codes)
        end
    end
end

declare(HEADER)
declare(SEG)
for _, action in pairs(ACTION) do
    for _, layout in pairs(VALUES[action]) do declare(layout) end
end
local bits = {}
for bit, name in pairs(FLAGS) do
    f["flags." .. name] = ProtoField.bool("iswitch.flags." .. name, name, 16, nil, bit)
    table.insert(bits, { bit = bit, field = f["flags." .. name] })
end
table.sort(bits, function(a, b) return a.bit < b.bit end)

f.seg = ProtoField.uint64("iswitch.seg", "Seg", base.HEX)
f.mac = ProtoField.bytes("iswitch.mac", "MAC")
f.data = ProtoField.bytes("iswitch.data", "Elements")
f.elements = ProtoField.double("iswitch.elements", "Element")
f.missing = ProtoField.uint64("iswitch.ack.missing", "Missing seats, a bit each", base.HEX)
f.to_switch = ProtoField.bool("iswitch.to_switch", "To the switch")
f.request_in = ProtoField.framenum("iswitch.request_in", "Answers the request in", base.NONE, frametype.REQUEST)
f.response_in = ProtoField.framenum("iswitch.response_in", "Answered in", base.NONE, frametype.RESPONSE)
f.repeat_of = ProtoField.framenum("iswitch.repeat_of", "Repeats the request in", base.NONE, frametype.RETRANS_PREV)
f.ack_time = ProtoField.relative_time("iswitch.ack_time", "Time since the request")
iswitch.fields = f

local e = {
    malformed = ProtoExpert.new("iswitch.malformed", "Malformed packet",
        expert.group.MALFORMED, expert.severity.ERROR),
    refused = ProtoExpert.new("iswitch.refused", "Request refused",
        expert.group.RESPONSE_CODE, expert.severity.WARN),
    repeated = ProtoExpert.new("iswitch.repeated", "Request repeated, not answered so far",
        expert.group.SEQUENCE, expert.severity.NOTE),
    unmatched = ProtoExpert.new("iswitch.unmatched", "Ack without a request in this capture",
        expert.group.SEQUENCE, expert.severity.NOTE),
    assumed = ProtoExpert.new("iswitch.assumed", "Element type assumed: no Join in this capture",
        expert.group.ASSUMPTION, expert.severity.NOTE),
    truncated = ProtoExpert.new("iswitch.truncated", TRUNCATED,
        expert.group.UNDECODED, expert.severity.NOTE),
}
iswitch.experts = e

-- Preferences

local dtypes = {}
for code, name in pairs(CODES.dtype) do table.insert(dtypes, { code + 1, name, code }) end
table.sort(dtypes, function(a, b) return a[1] < b[1] end)
iswitch.prefs.ports = Pref.range("UDP ports", tostring(PORT), "Where switches listen", 65535)
iswitch.prefs.dtype = Pref.enum("Elements, if no Join tells", 0,
    "Data packets do not name the type of their elements; a Join does", dtypes, false)

local function is_switch_port(port)
    for from, to in string.gmatch(tostring(iswitch.prefs.ports), "(%d+)%-?(%d*)") do
        if port >= tonumber(from) and port <= (tonumber(to) or tonumber(from)) then return true end
    end
    return false
end
